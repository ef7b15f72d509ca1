"""Messages on the wire: what is packed comes back, and nothing else gets in."""

from __future__ import annotations

import io
from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from rlpipe.serving import wire
from rlpipe.serving.wire import Frame, WireError, pack_openpi, pack_vla_eval, unpack

NUMBERS = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(endianness="?"), arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)  # fmt: skip
TEXTS = arrays.unicode_string_dtypes(max_len=5)
SHAPES = arrays.array_shapes(min_dims=0, min_side=0, max_side=4)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary())


def messages(dtypes):
    leaves = PLAIN | arrays.arrays(dtypes, SHAPES) | arrays.arrays(dtypes, (6, 4)).map(lambda array: array[::2, ::-1])
    names = st.text().filter(lambda name: not name.startswith("__"))
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


def assert_same(packed, back):
    if isinstance(packed, np.ndarray):
        assert back.flags.writeable
        assert back.dtype == packed.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back, packed)
    elif isinstance(packed, dict):
        assert back.keys() == packed.keys()
        for name in packed:
            assert_same(packed[name], back[name])
    elif isinstance(packed, list):
        assert len(back) == len(packed)
        for one, other in zip(packed, back, strict=True):
            assert_same(one, other)
    else:
        assert type(back) is type(packed)
        assert back == packed or (back != back and packed != packed)


@settings(max_examples=50)
@given(messages(NUMBERS | TEXTS))
def test_what_is_packed_as_openpi_does_comes_back(message):
    assert_same(message, unpack(pack_openpi(message)))


@settings(max_examples=50)
@given(messages(NUMBERS))
def test_what_is_packed_as_vla_eval_does_comes_back(message):
    assert_same(message, unpack(pack_vla_eval(message)))


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_message_or_refused(message):
    with suppress(WireError):
        unpack(message)


OPENPI_REQUEST = (
    b"\x81\xb1observation/state"
    b"\x84\xc4\x0b__ndarray__\xc3\xc4\x04data\xc4\x08" + np.float32([1, 2]).tobytes()
    + b"\xc4\x05dtype\xa3<f4\xc4\x05shape\x91\x02"
)  # fmt: skip
"""Bytes of openpi-client 0.1.2."""


def test_a_request_of_the_official_client_is_read_and_written_to_the_byte():
    message = {"observation/state": np.float32([1, 2])}
    assert_same(message, unpack(OPENPI_REQUEST))
    assert pack_openpi(message) == OPENPI_REQUEST


def test_a_scalar_of_openpi_is_a_plain_number():
    packed = msgpack.packb({"seed": {b"__npgeneric__": True, b"data": 7, b"dtype": "<i8"}})
    assert_same({"seed": 7}, unpack(packed))


def picture(format_, pixels, **fields):
    """A picture as vla-eval 0.8 sends it."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=format_)
    marked = {"__image__": True, "format": format_, "data": file.getvalue(), "shape": list(pixels.shape)}
    return msgpack.packb({"cam": marked | fields})


PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


@pytest.mark.parametrize("pixels", [PIXELS, PIXELS[..., 0], np.dstack([PIXELS, PIXELS[..., :1]])])
def test_a_compressed_picture_is_read_to_the_pixel(pixels):
    assert_same({"cam": pixels}, unpack(picture("png", pixels)))
    assert unpack(picture("png", PIXELS[..., 0], shape=[2, 3, 1]))["cam"].shape == (2, 3, 1)


def test_a_jpeg_and_a_raw_picture_are_read():
    assert unpack(picture("jpeg", PIXELS))["cam"].shape == (2, 3, 3)
    raw = {"__image__": True, "format": "raw", "data": PIXELS.tobytes(), "dtype": "|u1", "shape": [2, 3, 3]}
    assert_same({"cam": PIXELS}, unpack(msgpack.packb({"cam": raw})))


def array(**fields):
    return msgpack.packb({"__ndarray__": True, "data": b"\0" * 8, "dtype": "<f4", "shape": [2]} | fields)


REFUSED = {
    "objects": (array(dtype="|O", shape=[1]), "arrays of object are not sent"),
    "records": (array(dtype="f4,f4", shape=[1]), "are not sent"),
    "complex numbers": (array(dtype="<c8", shape=[1]), "are not sent"),
    "dates": (array(dtype="<M8[s]", shape=[1]), "are not sent"),
    "no type": (array(dtype="os.system"), "is no type of numbers"),
    "more than came": (array(shape=[2**40]), "but 8 bytes came"),
    "less than came": (array(shape=[1]), "has 4 bytes, but 8 bytes came"),
    "a negative size": (array(shape=[-2]), "is no shape"),
    "text as data": (array(data="12345678"), "a str came"),
    "nothing but a marker": (msgpack.packb({"__ndarray__": True}), "KeyError"),
    "an extension": (msgpack.packb(msgpack.ExtType(5, b"x")), "extension of msgpack"),
    "numbers as keys": (b"\x81\x01\x02", "int is not allowed"),
    "half a message": (OPENPI_REQUEST[:-1], "incomplete"),
    "a thousand lists": (b"\x91" * 5000, "no msgpack"),
    "a picture of another size": (picture("png", PIXELS, shape=[2, 2, 3]), "2 x 3 pixels"),
    "a picture of another format": (picture("png", PIXELS, format="jpeg"), "cannot be read"),
    "a picture of no format": (picture("png", PIXELS, format="gif"), "png, jpeg and raw"),
}  # fmt: skip


@pytest.mark.parametrize(("message", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_numbers_or_text_is_refused(message, words):
    with pytest.raises(WireError) as raised:
        unpack(message)
    assert words in str(raised.value)


def test_a_message_is_bounded_and_so_is_what_it_becomes(monkeypatch):
    monkeypatch.setattr(wire, "LARGEST_MESSAGE", 20_000)
    dark = np.zeros((100, 100), np.uint8)
    packed = picture("png", dark)
    assert unpack(packed)["cam"].size == 10_000
    assert len(packed) < 300
    twice = msgpack.packb([msgpack.unpackb(packed)] * 2)
    for refused in (twice, msgpack.packb([[[]] * 200] * 2), b"\0" * 20_001):
        with pytest.raises(WireError, match="20,000"):
            unpack(refused)
    with pytest.raises(WireError, match="at most 20,000 are sent"):
        pack_openpi(b"\0" * 20_001)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([None]), np.complex64(1), 2**70, np.longdouble(1)])
def test_what_has_no_place_in_a_message_is_not_packed(value):
    with pytest.raises(WireError):
        pack_openpi({"a": value})


def test_vla_eval_reads_no_arrays_of_text():
    with pytest.raises(WireError, match="not sent"):
        pack_vla_eval(np.array(["a"]))


def test_a_frame_comes_back_and_what_is_none_is_refused():
    frame = Frame("observation", {"state": np.float32([1])}, 7)
    assert (Frame.read(frame.packed()).type, Frame.read(frame.packed()).seq) == ("observation", 7)
    for other in ("text", pack_vla_eval([]), pack_vla_eval({"type": "hello"}), Frame("hello", {}, None).packed()):
        with pytest.raises(WireError):
            Frame.read(other)
