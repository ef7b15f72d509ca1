"""Types of arguments that several commands share."""

from __future__ import annotations

from typing import Any

import typer


def _whole_number(text: str) -> int:
    """Parses a whole number by its value: 1e3 and 1000.0 are 1000."""
    from rlpipe.config.fields import whole_number
    from rlpipe.errors import ConfigError

    try:
        return whole_number(text, "")
    except ConfigError as error:
        raise typer.BadParameter(f"{text!r} is not a whole number.") from error


WHOLE_NUMBER: dict[str, Any] = {"parser": _whole_number, "metavar": "INTEGER"}
"""Arguments of ``typer.Option`` for a whole number."""
