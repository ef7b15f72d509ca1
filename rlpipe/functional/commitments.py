"""Commitments: hashes by which what was done can be checked afterwards. Needs no torch, which takes seconds to load."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Hasher(Protocol):
    """Hash of ``hashlib`` that takes more bytes."""

    def update(self, data: Any, /) -> None:
        """Hashes more bytes."""


def add_arrays(hasher: Hasher, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Hashes names, types, shapes and bytes of arrays, in the order of their names.

    Each begins with the length of its heading in 8 bytes, so that no two sets of arrays are the same bytes.
    """
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        heading = json.dumps([name, array.dtype.str, array.shape]).encode()
        hasher.update(len(heading).to_bytes(8, "little"))
        hasher.update(heading)
        hasher.update(array.reshape(-1).view(np.uint8).data)


def sha256_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of names, types, shapes and bytes of arrays, as 64 hexadecimal digits."""
    hasher = hashlib.sha256()
    add_arrays(hasher, arrays)
    return hasher.hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and without spaces, in ASCII: equal values are equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def merkle_root(entries: Sequence[bytes]) -> str:
    """Root of a tree of hashes over entries in their order.  RFC 6962, section 2.1:

        root(d_1)           = SHA-256(0x00 || d_1)
        root(d_1, ..., d_n) = SHA-256(0x01 || root(d_1, ..., d_k) || root(d_(k+1), ..., d_n))

    with k the largest power of two below n. The first byte keeps an entry from passing for two hashes. Without entries
    it is the hash of nothing.

    Returns:
        64 hexadecimal digits.
    """
    return _root(entries).hex()


def _root(entries: Sequence[bytes]) -> bytes:
    if len(entries) < 2:
        return hashlib.sha256(b"".join(b"\x00" + entry for entry in entries)).digest()
    half = 1 << (len(entries) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + _root(entries[:half]) + _root(entries[half:])).digest()


def chance_of_catching(rows: int, forged: int, drawn: int) -> float:
    """Probability that at least one forged row is among those drawn without replacement, ``1 - C(rows - forged, drawn)
    / C(rows, drawn)``. It is at least ``1 - (1 - forged / rows)^drawn``: one row in twenty and 60 draws give 0.954.

    Args:
        rows: rows of the record.
        forged: those that are not true.
        drawn: rows that are checked.
    """
    return 1 - math.comb(rows - forged, drawn) / math.comb(rows, drawn)
