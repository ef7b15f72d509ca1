"""Writes the generated pages, and removes those that have gone."""

from __future__ import annotations

from docs.generate import DOCS, pages, stored

if __name__ == "__main__":
    written = pages()
    for path in stored().keys() - written.keys():
        (DOCS / path).unlink()
    for path, text in written.items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")
