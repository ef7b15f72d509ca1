"""The shell of pages: sections, escaping, scripts."""

from __future__ import annotations

import json
import re

import pytest
from markupsafe import Markup

from rlpipe.report.web.page import Section, page, render

LEAD = Markup("<h1>A page</h1>")


def test_each_section_has_a_heading_and_an_entry_in_the_navigation():
    text = page("t", [Section("one", "First & last", Markup("<p>words</p>"))], LEAD)
    assert '<a href="#one">First &amp; last</a>' in text
    assert '<h2 id="one-title">First &amp; last</h2>\n<p>words</p>' in text


def test_data_of_a_section_cannot_end_its_element_and_is_read_back_unchanged():
    data = {"name": "</script><script>alert(1)</script>", "number": 0.1}
    text = page("t", [Section("one", "One", Markup(), data=data)], LEAD)
    inside = re.search(r'<script type="application/json" id="data-one">(.*?)</script>', text, re.DOTALL)
    assert inside is not None
    assert "<" not in inside[1]
    assert json.loads(inside[1]) == data


def test_the_title_of_a_page_is_escaped():
    assert "<title>a &lt;b&gt; c</title>" in page("a <b> c", [], LEAD)


def test_a_path_with_bytes_that_are_not_text_is_shown_with_replacements():
    assert "<title>runs/a?</title>" in page("runs/a\udcff", [], LEAD)


def test_a_script_that_two_sections_name_stands_once():
    sections = [Section(name, name, Markup(), scripts=("const shared = 1;",)) for name in ("one", "two")]
    assert page("t", sections, LEAD).count("const shared = 1;") == 1


def test_a_script_that_would_end_its_element_is_refused():
    with pytest.raises(ValueError, match="would end its element"):
        page("t", [Section("one", "One", Markup(), scripts=("x = '</script>'",))], LEAD)


def test_two_sections_with_one_id_are_refused():
    with pytest.raises(ValueError, match="different ids, but got one, one"):
        page("t", [Section("one", "A", Markup()), Section("one", "B", Markup())], LEAD)


def test_a_page_names_no_address():
    assert not re.findall(r"(?:src|href)=[\"'](?!#|data:)", page("t", [Section("one", "One", Markup())], LEAD))


def test_a_template_with_a_missing_value_is_an_error():
    with pytest.raises(Exception, match="'title' is undefined"):
        render("page.html", styles=[], sections=[], lead="")
