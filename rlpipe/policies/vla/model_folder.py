"""Folders that hold a model in Hugging Face's format: what must be in them, and a digest of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rlpipe import files
from rlpipe.errors import ConfigError

_NEEDED = {
    "config.json": ("config.json",),
    "weights (*.safetensors)": ("*.safetensors",),
    "a tokenizer (tokenizer.json, tokenizer.model or vocab.json)": ("tokenizer.json", "tokenizer.model", "vocab.json"),
    "a processor (processor_config.json or preprocessor_config.json)": (
        "processor_config.json",
        "preprocessor_config.json",
    ),
}
"""Names of what a folder must hold, and patterns of files of which one is enough."""
_READ = (".json", ".safetensors", ".jinja", ".model", ".txt")
"""Endings of the files that decide what a model does."""
_SHARDS = "model.safetensors.index.json"


def check_folder(folder: Path) -> None:
    """Raises ConfigError if a folder does not hold a whole model; the message says what is missing."""
    if (kind := files.kind_of(folder)) != "directory":
        reason = "that is a file" if kind else "there is no such folder"
        raise ConfigError(
            f"policy.model is {folder}, but {reason}. rlpipe downloads nothing: put a Hugging Face image-text-to-text "
            "model there beforehand, on every machine (hf download NAME --local-dir FOLDER)."
        )
    missing = [name for name, patterns in _NEEDED.items() if not any(any(folder.glob(pattern)) for pattern in patterns)]
    missing += [name for name in _shards(folder) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"policy.model is {folder}, where these are missing: {', '.join(missing)}. Download the whole folder "
            "again: hf download NAME --local-dir FOLDER."
        )


def _shards(folder: Path) -> list[str]:
    """Names of the files of weights that the index names, if there is one."""
    index = folder / _SHARDS
    if not index.is_file():
        return []
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} is not an index of weights: {type(error).__name__}: {error}.") from error


def digest(folder: Path) -> bytes:
    """SHA-256 over names and contents of the files that decide what the model does, in the order of their names.

    Raises:
        ConfigError: a file cannot be read.
    """
    whole = hashlib.sha256()
    try:
        for file in sorted(path for path in folder.iterdir() if path.suffix in _READ and path.is_file()):
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").digest()
            whole.update(hashlib.sha256(file.name.encode()).digest() + content)
    except OSError as error:
        raise ConfigError(f"policy.model is {folder}, which cannot be read: {error}.") from error
    return whole.digest()
