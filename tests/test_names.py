"""Local names say which quantity they hold: a participle or a pronoun alone does not."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "rlpipe"
WITHOUT_A_NOUN = {
    "found", "one", "own", "known", "given", "made", "kept", "chosen", "wanted", "shown", "asked", "taken", "told",
}  # fmt: skip


def names_without_a_noun(file: Path) -> list[str]:
    """Local variables and parameters of a file that are such a word; fields of a class belong to its interface."""
    tree = ast.parse(file.read_text())
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    names = [
        (node.arg if isinstance(node, ast.arg) else node.id, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        if id(node) not in fields
    ]
    return [f"{file.relative_to(PACKAGE)}:{line} {name}" for name, line in names if name in WITHOUT_A_NOUN]


def test_no_local_name_lacks_a_noun():
    assert [name for file in sorted(PACKAGE.rglob("*.py")) for name in names_without_a_noun(file)] == []


def test_a_local_name_without_a_noun_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_names.PACKAGE", tmp_path)
    file = tmp_path / "module.py"
    file.write_text(
        "class Kept:\n    kept: int\n\ndef best(given):\n    found = [one for one in given]\n    return found\n"
    )
    assert names_without_a_noun(file) == ["module.py:4 given", "module.py:5 found", "module.py:5 one"]
