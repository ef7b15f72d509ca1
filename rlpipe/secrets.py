"""Keeps credentials out of the configuration of a run and out of everything it prints.

A service reads its key from the environment or from its own login file. A configuration is copied to the run directory,
to every checkpoint and to every backend, so a key in it is published.
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
"""Last words of names that hold the place or the kind of a credential instead of the credential."""
_VOCABULARY = ("action", "bos", "cls", "eos", "image", "mask", "pad", "per", "sep", "state", "unk")
"""Words before ``token`` that mean a token of a policy."""
_IN_URL = re.compile(r"(?<=://)[^\s/?#@:]*:([^\s/?#@]+)(?=@)")
_MIN_CONTAINED, _MIN_EQUAL = 8, 5
"""Shortest credentials that are recognized inside a text, and as the whole of it; shorter ones are ordinary words."""
_ADVICE = (
    "A configuration is copied to the run directory, to checkpoints and to backends. Leave credentials out of it: "
    "services read them from the environment or from their own login."
)


def is_credential(name: str) -> bool:
    """True if a key or an environment variable of that name holds a credential, such as ``WANDB_API_KEY``."""
    words = _words(name)
    spelled = _CREDENTIAL.search(f"_{'_'.join(words)}_") is not None
    return _is_token(words) or (spelled and words[-1] not in _AROUND)


def check_no_secrets(tree: Mapping[Any, Any], environ: Mapping[str, str]) -> None:
    """Checks that a resolved configuration holds no credential.

    Raises:
        ConfigError: it holds one; the message names the key and never the value.
    """
    credentials = _values(environ)
    for path, value in leaves(tree):
        text, key = str(value), dotted(path)
        if text and any(_holds_credential(name, value) for name in path):
            raise ConfigError(f"{key} looks like a credential and has a value. {_ADVICE}")
        if _IN_URL.search(text):
            raise ConfigError(f"{key} is an address with a password in it (user:password@). {_ADVICE}")
        for secret, variable in credentials.items():
            if secret == text or (len(secret) >= _MIN_CONTAINED and secret in text):
                raise ConfigError(f"{key} holds the value of the environment variable {variable}. {_ADVICE}")


def redacted(text: str, environ: Mapping[str, str]) -> str:
    """Returns the text with ``***`` for each credential of the environment and each password in an address."""
    credentials = [re.escape(secret) for secret in _values(environ) if len(secret) >= _MIN_CONTAINED]
    if credentials:
        text = re.sub("|".join(sorted(credentials, key=len, reverse=True)), "***", text)
    return _IN_URL.sub("***", text)


def _words(name: str) -> list[str]:
    """Returns wandb, api, key for ``wandbApiKey``, ``WANDB_API_KEY`` and ``wandb.api-key``."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.findall("[a-z0-9]+", separated)


def _is_token(words: list[str]) -> bool:
    return words[-1:] == ["token"] and not set(words[-2:-1]) & set(_VOCABULARY)


def _holds_credential(name: str, value: str | float) -> bool:
    """True if the value under this name is a credential.

    A number under ``token`` is a price or a count; a number under ``password`` may well be a password.
    """
    return is_credential(name) and (isinstance(value, str) or not _is_token(_words(name)))


def _values(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that holds each credential of the environment, by the credential."""
    variables = {value.strip(): name for name, value in environ.items() if is_credential(name)}
    variables |= {match[1]: name for name, value in environ.items() for match in _IN_URL.finditer(value)}
    return {secret: name for secret, name in variables.items() if len(secret) >= _MIN_EQUAL}


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str | float]]:
    """Yields every string and number with the keys that lead to it."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from leaves(value, (*path, str(name)))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, f"[{index}]"))
    elif isinstance(tree, (str, int, float)) and not isinstance(tree, bool):
        yield path, tree


def dotted(path: tuple[str, ...]) -> str:
    """Returns the key that ``leaves`` gives as a path, such as ``env.train.tasks[0].id``."""
    return ".".join(path).replace(".[", "[")
