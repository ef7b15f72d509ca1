"""Hashes: the tree of RFC 6962 by the vectors of its reference implementation, and the chance of a draw."""

from __future__ import annotations

import numpy as np
import pytest

from rlpipe.functional.commitments import canonical_json, chance_of_catching, merkle_root, sha256_of_arrays

ENTRIES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]


@pytest.mark.parametrize(
    ("count", "root"),
    [
        (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
        (2, "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
        (3, "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
        (8, "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"),
    ],
)
def test_the_root_is_that_of_the_logs_of_certificates(count, root):
    assert merkle_root(ENTRIES[:count]) == root


def test_two_entries_are_not_one_that_holds_their_hashes():
    inside = b"".join(bytes.fromhex(merkle_root([entry])) for entry in (b"a", b"b"))
    assert merkle_root([b"a", b"b"]) != merkle_root([inside])


def test_equal_values_are_equal_bytes_of_json():
    assert canonical_json({"b": 1.0, "a": [None, "é"]}) == b'{"a":[null,"\\u00e9"],"b":1.0}'


def test_the_digest_of_arrays_tells_names_types_and_shapes_apart():
    values = np.arange(4, dtype=np.float32)
    digests = [
        sha256_of_arrays(arrays)
        for arrays in ({"w": values}, {"v": values}, {"w": values.view(np.int32)}, {"w": values.reshape(2, 2)})
    ]
    assert len({*digests}) == 4


def test_sixty_draws_find_one_row_in_twenty_with_95_percent():
    """Of 20 rows, 1 forged, 10 drawn: half the time. Without end of rows, 1 - 0.95^60."""
    assert chance_of_catching(20, 1, 10) == pytest.approx(0.5)
    assert chance_of_catching(20, 1, 20) == 1
    assert chance_of_catching(400, 20, 60) == pytest.approx(0.9645, abs=1e-4)
    assert round(1 - 0.95**60, 3) == 0.954
