"""The documentation site: a strict build, links that lead somewhere, no request to any address, tutorials that run."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from rlpipe.config.other_systems import OPTIONS
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.dialects import SYSTEMS, find, uses
from tests.helpers.browser import started_browser

DOCS = Path(__file__).parent.parent / "docs"
CONFIGURATION = DOCS / "site" / "mkdocs.yml"
TUTORIALS = runpy.run_path(str(DOCS / "site" / "tutorials.py"))

pytestmark = pytest.mark.extras


def build(configuration: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Builds a site without the outputs of the tutorials, which take longer than everything else."""
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(configuration), "--site-dir", str(out)]
    environment = os.environ | {"RUN_TUTORIALS": "false", "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site, and what its build said."""
    out = tmp_path_factory.mktemp("site")
    return out, build(CONFIGURATION, out)


class Elements(HTMLParser):
    """Tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {name: value or "" for name, value in attrs}))


@pytest.fixture(scope="module")
def pages(built):
    """Elements of every page of the site."""
    return {page: Elements(page.read_text(encoding="utf-8")).found for page in built[0].rglob("*.html")}


def test_a_strict_build_has_no_warning(built):
    _, answer = built
    assert answer.returncode == 0, answer.stderr
    assert "WARNING" not in answer.stderr


def test_every_page_of_the_documentation_is_in_the_navigation():
    navigation = CONFIGURATION.read_text(encoding="utf-8").split("\nnav:\n")[1].split("\ntheme:\n")[0]
    named = re.findall(r"([\w/]+\.md)$", navigation, flags=re.MULTILINE)
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_every_link_of_the_site_leads_to_a_page_and_a_place_on_it(pages):
    places = {page: {attributes.get("id") for _, attributes in found} for page, found in pages.items()}
    broken = []
    for page, found in pages.items():
        if page.name == "404.html":  # its links begin at the top of a server
            continue
        for tag, attributes in found:
            link = urlsplit(attributes.get("href", "") if tag == "a" else attributes.get("src", ""))
            if link.scheme or not (link.path or link.fragment):
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (link.fragment and unquote(link.fragment) not in places.get(target, ())):
                broken.append(f"{page.name}: {link.geturl()}")
    assert broken == []


def test_no_page_asks_any_address_for_a_script_a_style_a_font_or_a_picture(built, pages):
    asked = [
        address
        for found in pages.values()
        for tag, attributes in found
        for address in (attributes.get("src", ""), attributes.get("href", "") if tag == "link" else "")
        if address.startswith(("http:", "https:", "//")) and attributes.get("rel") != "canonical"
    ]
    styles = [file.read_text(encoding="utf-8") for file in built[0].rglob("*.css")]
    asked += [found for style in styles for found in re.findall(r"(?:url\(|@import\s+)[\"']?(?:https?:)?//", style)]
    assert asked == []


def test_each_moving_picture_of_the_gallery_leads_to_a_page_that_plays_it(built, pages):
    filmed = {folder.name for folder in (DOCS / "replays").iterdir()}
    assert filmed == {picture.stem for picture in (DOCS / "images" / "gallery").iterdir()}
    linked = {attributes.get("href", "") for _, attributes in pages[built[0] / "gallery.html"]}
    for name in filmed:
        assert f"replays/{name}.html" in linked
        assert any(tag == "canvas" for tag, _ in pages[built[0] / "replays" / f"{name}.html"])


def test_the_search_finds_a_page_without_a_server(built):
    with started_browser() as browser:
        page = browser.new_page()
        page.goto((built[0] / "index.html").as_uri())
        page.locator("input.md-search__input").click()
        page.keyboard.type("Wilson interval")
        first = page.locator("a.md-search-result__link").first
        first.wait_for()
        assert "api/functional.html" in str(first.get_attribute("href"))


def test_a_broken_link_fails_the_build(tmp_path):
    shutil.copytree(DOCS / "site", tmp_path / "docs" / "site")
    links = "[nowhere](nowhere.md), [no such place](#no-such-place)"
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n{links}\n", encoding="utf-8")
    copy = tmp_path / "docs" / "site" / "mkdocs.yml"
    alone = re.sub(r"\nnav:\n.*?\ntheme:\n", "\ntheme:\n", copy.read_text(encoding="utf-8"), flags=re.DOTALL)
    copy.write_text(alone, encoding="utf-8")
    answer = build(copy, tmp_path / "out")
    assert answer.returncode != 0
    for target in ("nowhere.md", "#no-such-place"):
        assert f"WARNING -  Doc file 'index.md' contains a link '{target}'" in answer.stderr


def test_every_tutorial_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    """In one kernel, which forgets every name and enters an empty folder before each tutorial, with shorter runs."""
    pages = [(DOCS / "tutorials" / name).read_text(encoding="utf-8") for name in TUTORIALS["names"]()]
    bodies = [re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL) for page in pages]
    afresh = "```python\n!mkdir empty\n%cd -q empty\n%reset -f\n```\n"
    header = pages[0].removesuffix(bodies[0])
    text = header + "".join(f"\n{afresh}\n{body}" for body in bodies)
    text, runs = re.subn(r'(total_timesteps"?[=:] ?)([\d_]+)', lambda one: f"{one[1]}{int(one[2]) // 10}", text)
    assert runs == len(pages)
    (tmp_path / "all.md").write_text(text, encoding="utf-8")
    monkeypatch.setitem(TUTORIALS["execute"].__globals__, "SECONDS", 600)
    cells = [cell for cell in TUTORIALS["execute"](tmp_path / "all.md").cells if cell.cell_type == "code"]
    assert len(cells) == sum(page.count("\n```python\n") + 1 for page in pages)
    assert all(cell.execution_count for cell in cells)


def test_no_output_of_a_tutorial_is_stored():
    for name in TUTORIALS["names"]():
        notebook = TUTORIALS["read"](DOCS / "tutorials" / name)
        assert not any(cell.get("outputs") for cell in notebook.cells)


def test_the_gallery_is_up_to_date():
    expected = runpy.run_path(str(DOCS / "generate_gallery.py"))["page"]()
    assert (DOCS / "gallery.md").read_text(encoding="utf-8") == expected, "run: python docs/generate_gallery.py"


# --- coming_from.md: names of metrics and of configuration keys


PAGE = (DOCS / "coming_from.md").read_text(encoding="utf-8")
SYSTEM = {"RLinf": "rlinf", "Stable-Baselines3": "sb3", "TRL": "trl"}


def rows(header: str) -> list[tuple[str, list[str], list[str]]]:
    """(section, names in the first column, names in the second) of the tables whose header begins so."""
    found, section, inside = [], "", False
    for line in PAGE.splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        inside = line.startswith("|") and (inside or line.startswith(f"| {header}"))
        cells = line.strip("|").split("|")
        if inside and not line.startswith(("| ---", f"| {header}")):
            found.append((section, re.findall(r"`([^`]+)`", cells[0]), re.findall(r"`([^`]+)`", cells[1])))
    return found


def test_every_metric_of_another_system_is_a_name_of_its_dialect():
    tabled = rows("metric in")
    assert {section for section, _, _ in tabled} == set(SYSTEM)
    for section, theirs, _ in tabled:
        assert set(theirs) <= {use.name.key for use in uses(SYSTEM[section])}


def test_every_metric_on_the_page_is_in_the_catalogue_or_in_a_dialect():
    for _, _, ours in rows("metric in") + rows("reported by"):
        assert set(ours) <= set(CATALOGUE)
    named = re.findall(r"`([a-z]\w*(?:/[\w{}]+)+)`", PAGE)
    known = {*CATALOGUE, *(use.name.key for system in SYSTEMS for use in uses(system))}
    assert [name for name in named if name not in known and not find(name)] == []


OPTION_TABLES = ("configuration in RLinf", "Stable-Baselines3 |", "CleanRL |", "TRL |", "RLlib |")


@pytest.mark.parametrize("system", OPTIONS)
def test_the_answer_to_an_option_of_another_system_is_what_the_page_says(system):
    tabled = {}
    for section, theirs, ours in (row for header in OPTION_TABLES for row in rows(header)):
        if section == system:
            tabled |= {name.split(":")[0].rpartition(".")[2]: {one.split(":")[0] for one in ours} for name in theirs}
    answers = {name.rpartition(".")[2]: ours for name, ours in OPTIONS[system].items()}
    assert {name: ours for name, ours in answers.items() if not {*ours} <= tabled.get(name, set())} == {}


def test_every_configuration_key_on_the_page_exists():
    pages = (DOCS / "reference" / "configuration").glob("*.md")
    documented = "".join(page.read_text(encoding="utf-8") for page in pages)
    keys = {
        *re.findall(r"^\| `([\w.]+)` \|", documented, flags=re.MULTILINE),
        "env.train.id",
        "env.train.name",
        "demos",
    }
    headers = (*OPTION_TABLES, "LeRobot |")
    named = [name for header in headers for _, _, ours in rows(header) for name in ours]
    named = [re.split(r"[:=]", name)[0].replace("env.eval.", "env.train.") for name in named]
    assert len(named) > 80
    assert [name for name in named if name not in keys and not name.startswith("rlpipe ") and "." in name] == []
