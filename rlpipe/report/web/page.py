"""One self-contained HTML page of several sections, with one look, a navigation, and a light and a dark theme.

It knows nothing of runs. Whatever a page shows is a ``Section``, whose template may use ``formats`` as filters; styles,
scripts and data travel in the file, and its content security policy forbids every request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from rlpipe.errors import ConfigError
from rlpipe.report import formats

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """Part of a page, with a heading and an entry in the navigation.

    Attributes:
        id: its anchor, unique in the page; letters, digits and hyphens
        title: its heading
        html: what stands below the heading; everything from a run in it is escaped
        style: CSS of its own
        scripts: JavaScript, run in this order after the page is complete; a script that several sections name runs
            once, where it is named first
        data: JSON object that its scripts read from the element ``data-<id>``
    """

    id: str
    title: str
    html: Markup
    style: str = ""
    scripts: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def page(title: str, sections: Sequence[Section], lead: Markup) -> str:
    """Builds the page; ``lead`` are its first words, with its main heading.

    Raises:
        ValueError: two sections share an id, or a script would end its own element.
    """
    ids = [section.id for section in sections]
    if len({*ids}) < len(ids):
        raise ValueError(f"the sections of a page need different ids, but got {', '.join(ids)}.")
    scripts = [asset("scripts/page.js"), *dict.fromkeys(script for section in sections for script in section.scripts)]
    if any("</script" in script.lower() for script in scripts):
        raise ValueError("a script of a page may not contain '</script', which would end its element.")
    styles = [asset("style.css"), *dict.fromkeys(section.style for section in sections if section.style)]
    data = {section.id: embedded(section.data) for section in sections if section.data}
    text = render(
        "page.html",
        title=title,
        lead=lead,
        sections=sections,
        theme=Markup(asset("scripts/theme.js")),
        styles=[Markup(style) for style in styles],
        scripts=[Markup(script) for script in scripts],
        data=data,
    )
    return text.encode(errors="replace").decode()  # the path of a run may have bytes that are not text


def check_file(file: Path) -> None:
    """Checks that a page can be written to the file that ``--out`` names."""
    if file.is_dir() or not file.parent.is_dir():
        problem = "is a folder" if file.is_dir() else f"cannot be written: there is no folder {file.parent}"
        raise ConfigError(f"--out: {file} {problem}.")


def write_page(file: Path, text: str) -> None:
    """Writes a page, whole or not at all."""
    check_file(file)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"--out: cannot write {file}: {error.strerror or error}.") from error


def embedded(data: Mapping[str, Any]) -> Markup:
    """Writes data as JSON that may stand inside a ``script`` element: ``<`` is escaped, so that no text ends it."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def render(template: str, **values: Any) -> Markup:
    """Fills a template of the folder ``templates``; all strings but ``Markup`` are escaped."""
    return Markup(_templates().get_template(template).render(values))


@cache
def asset(name: str) -> str:
    """Reads a file beside this one, such as ``vendor/uplot/uPlot.min.css``."""
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("bounds", "digits", "duration", "moment", "result", "setting", "whole"):
        environment.filters[name] = getattr(formats, name)
    environment.globals["absent"] = formats.ABSENT
    return environment
