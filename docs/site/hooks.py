"""Turns the pages of docs/ into those of the site, where the two differ.

Tutorials are run. A link to a file of the repository, such as ../configs/ppo_cartpole.yaml, leads to a page that shows
the file, because the site must work without the repository. Pictures of the gallery lead to pages
that play the episodes.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from rlpipe.report.replays import section
from rlpipe.report.web.page import page as html_page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import tutorials  # noqa: E402 - beside this file, which mkdocs loads by its path

OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)\)")
CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
BREAK = re.compile(r"([._/=])(?=\w)")
FILMED = re.compile(r"!\[[^]]*\]\(images/gallery/([\w-]+)\.webp\)")
REPLAYS = "replays"
SHOWN = "files"
"""Folder of the site for the files of the repository that pages link to."""


def on_pre_build(config: MkDocsConfig, **_: Any) -> None:
    """Runs the tutorials."""
    if config.extra["run_tutorials"]:
        tutorials.prepare()


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Adds a page for each file of the repository that a page links to, and for the replays of the gallery."""
    for run in sorted((ROOT / "docs" / REPLAYS).glob("*")):
        played = section(run)
        assert played is not None
        lead = Markup('<h1>{}</h1><p><a href="../gallery.html">Gallery</a></p>').format(run.name)
        content = html_page(f"{run.name}: replays", [played], lead)
        files.append(File.generated(config, f"{REPLAYS}/{run.name}.html", content=content))
    linked = {
        path
        for page in files.documentation_pages()
        for _, path in links(Path(str(page.abs_src_path)).read_text(encoding="utf-8"), page.src_uri)
    }
    for path in sorted(linked):
        added = File.generated(config, f"{SHOWN}/{path}.md", content=shown(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Puts the outputs of a tutorial below its cells, and redirects links to files of the repository."""
    uri = page.file.src_uri
    if uri == "gallery.md":
        markdown = FILMED.sub(
            rf"[\g<0>]({REPLAYS}/\1.html)\n\n[Play it in 3D]({REPLAYS}/\1.html){{ .md-button }}", markdown
        )
    if tutorials.is_tutorial(uri):
        markdown = tutorials.rendered(Path(str(page.file.abs_src_path)), run=config.extra["run_tutorials"])
    for target, path in links(markdown, uri):
        own = posixpath.relpath(f"{SHOWN}/{path}.md", posixpath.dirname(uri) or ".")
        markdown = markdown.replace(f"]({target})", f"]({own})")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Lets long names in tables break after a dot, a slash or an underscore, and nowhere else."""
    return CELL.sub(lambda cell: CODE.sub(lambda code: BREAK.sub(r"\1<wbr>", code[0]), cell[0]), html)


def links(markdown: str, uri: str) -> Iterator[tuple[str, str]]:
    """Links of a page to files of the repository outside docs/, as written and from the top of the repository."""
    for target in sorted(set(OUTSIDE.findall(markdown))):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), target))
        if not path.startswith(("docs/", "../")) and (ROOT / path).is_file():
            yield target, path


def shown(path: str) -> str:
    """Page that shows a file of the repository."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = {".yaml": "yaml", ".py": "python", ".toml": "toml", ".sh": "bash"}.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{text.rstrip()}\n````\n"
