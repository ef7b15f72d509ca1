"""Keeps credentials out of what a run writes: its configuration, and what is printed.

A service reads its key from the environment or from its own login file. A configuration is copied to the run directory,
to every checkpoint and to every backend, so a key that stands in it is published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlpipe.errors import ConfigError

_CREDENTIAL = re.compile(
    r"_([a-z0-9]*passw(or)?ds?|passphrase|secrets?|credentials?|(api|access|auth|private)_?keys?)_"
)
_AROUND = ("count", "dir", "env", "file", "folder", "id", "length", "mode", "name", "path", "size", "variable")
"""Last words of names that say where a credential is, or of what kind, and not what it is."""
_VOCABULARY = ("action", "bos", "cls", "eos", "image", "mask", "pad", "per", "sep", "state", "unk")
"""Words before ``token`` where it is one of a policy's."""
_IN_URL = re.compile(r"(?<=://)[^\s/?#@:]*:([^\s/?#@]+)(?=@)")
_CONTAINED, _EQUAL = 8, 5
"""Characters from which on a value counts when it stands within a text, and as all of it; shorter ones are words."""
_ADVICE = (
    "A configuration is copied to the run directory, to checkpoints and to backends. Leave credentials out of it: "
    "services read them from the environment or from their own login."
)


def is_credential(name: str) -> bool:
    """Whether a key or an environment variable of that name holds a credential, such as ``WANDB_API_KEY``."""
    words = _words(name)
    spelled = _CREDENTIAL.search(f"_{'_'.join(words)}_") is not None
    return _is_token(words) or (spelled and words[-1] not in _AROUND)


def check_no_secrets(tree: Mapping[Any, Any], environ: Mapping[str, str]) -> None:
    """Checks that a resolved configuration holds no credential.

    Args:
        tree: of mappings, lists and values.  environ: of the process.
    Raises:
        ConfigError: it holds one; the message names the key and never the value.
    """
    known = _values(environ)
    for path, value in _leaves(tree):
        text, key = str(value), ".".join(path).replace(".[", "[")
        if text and any(_holds_credential(name, value) for name in path):
            raise ConfigError(f"{key} looks like a credential and has a value. {_ADVICE}")
        if _IN_URL.search(text):
            raise ConfigError(f"{key} is an address with a password in it (user:password@). {_ADVICE}")
        for secret, variable in known.items():
            if secret == text or (len(secret) >= _CONTAINED and secret in text):
                raise ConfigError(f"{key} holds the value of the environment variable {variable}. {_ADVICE}")


def redacted(text: str, environ: Mapping[str, str]) -> str:
    """The text with ``***`` for each credential of the environment and each password in an address."""
    known = sorted((secret for secret in _values(environ) if len(secret) >= _CONTAINED), key=len, reverse=True)
    if known:
        text = re.sub("|".join(map(re.escape, known)), "***", text)
    return _IN_URL.sub("***", text)


def _words(name: str) -> list[str]:
    """wandb, api, key for ``wandbApiKey``, ``WANDB_API_KEY`` and ``wandb.api-key``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.findall("[a-z0-9]+", parted)


def _is_token(words: list[str]) -> bool:
    return words[-1:] == ["token"] and not set(words[-2:-1]) & set(_VOCABULARY)


def _holds_credential(name: str, value: str | float) -> bool:
    """A number under ``token`` is a price or a count; under ``password`` it may well be one."""
    return is_credential(name) and (isinstance(value, str) or not _is_token(_words(name)))


def _values(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that holds each credential of the environment, by its value."""
    found = {value.strip(): name for name, value in environ.items() if is_credential(name)}
    found |= {match[1]: name for name, value in environ.items() for match in _IN_URL.finditer(value)}
    return {secret: name for secret, name in found.items() if len(secret) >= _EQUAL}


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str | float]]:
    """Strings and numbers with the keys that lead to them."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _leaves(value, (*path, str(name)))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, f"[{index}]"))
    elif isinstance(tree, (str, int, float)) and not isinstance(tree, bool):
        yield path, tree
