"""Texts of fields and constants, which stand in the source and not in docstrings."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Sequence
from typing import Any


def texts_below(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Reads the text below each name of a module or a class."""
    texts: dict[str, str] = {}
    for declared, text in itertools.pairwise(body):
        target = declared.targets[0] if isinstance(declared, ast.Assign) else getattr(declared, "target", None)
        if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[target.id] = inspect.cleandoc(str(text.value.value))
    return texts


def body_of(owner: type[Any]) -> list[ast.stmt]:
    """Returns the statements of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    return definition.body
