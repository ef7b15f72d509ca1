"""Messages of policies behind a socket: msgpack with arrays, as openpi and vla-eval write it.

One decoder reads both. Nothing that it reads is executed: an array is numbers or text, every length is checked against
the bytes that came, and a message cannot become much larger in memory than on the wire.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

PROTOCOLS = ("openpi", "vla-eval")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Names of this machine, which no other one reaches."""
LARGEST_MESSAGE = 64 * 2**20
"""Bytes of a message, and of all that it becomes: two cameras of 1080p are 12 MB."""
OPENPI_KINDS = "biufU"
"""Kinds of NumPy types: truth values, integers, real numbers, text."""
VLA_EVAL_KINDS = "biuf"
PICTURES = {"png": "PNG", "jpeg": "JPEG"}
"""Formats of a picture on the wire, as Pillow names them."""
OF_A_CONTAINER = 64
"""Bytes that an empty list or map takes in memory, of which a message of one byte each could hold many."""


class WireError(ValueError):
    """A message that cannot be written or read."""


def pack_openpi(message: Any) -> bytes:
    """Packs a message as openpi's clients and servers do: markers of arrays are bytes.

    https://github.com/Physical-Intelligence/openpi, packages/openpi-client/src/openpi_client/msgpack_numpy.py

    Args:
        message: maps by strings, lists, numbers, text, and arrays of ``OPENPI_KINDS``.
    Raises:
        WireError: something in it has no place in a message, or it is too large.
    """
    return _packed(message, OPENPI_KINDS, str.encode)


def pack_vla_eval(message: Any) -> bytes:
    """Packs a message as vla-eval does: markers of arrays are text; pictures go as arrays, which it reads as well.

    https://github.com/allenai/vla-evaluation-harness, src/vla_eval/protocol/numpy_codec.py

    Args:
        message: as of ``pack_openpi``, with arrays of ``VLA_EVAL_KINDS``.
    Raises:
        WireError: something in it has no place in a message, or it is too large.
    """
    return _packed(message, VLA_EVAL_KINDS, str)


def _packed(message: Any, kinds: str, marker: Callable[[str], str | bytes]) -> bytes:
    def marked(value: Any) -> Any:
        if isinstance(value, np.generic):
            _check_type(value.dtype, kinds)
            return value.item()
        if not isinstance(value, np.ndarray):
            raise WireError(f"a message cannot hold a {type(value).__name__}.")
        _check_type(value.dtype, kinds)
        fields = {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}
        return {marker(name): field for name, field in fields.items()}

    try:
        packed: bytes = msgpack.packb(message, default=marked)
    except WireError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        raise WireError(f"the message cannot be packed: {error}.") from error
    if len(packed) > LARGEST_MESSAGE:
        raise WireError(f"the message has {len(packed):,} bytes; at most {LARGEST_MESSAGE:,} are sent.")
    return packed


def unpack(message: bytes) -> Any:
    """Unpacks a message of openpi or vla-eval.

    Returns:
        Maps, lists, numbers and text; arrays are copies in the byte order of this machine, which can be written to.
    Raises:
        WireError: it is no such message, holds what is no number or text, or is too large.
    """
    if len(message) > LARGEST_MESSAGE:
        raise WireError(f"the message has {len(message):,} bytes; at most {LARGEST_MESSAGE:,} are read.")
    reader = _Reader()
    try:
        return msgpack.unpackb(
            message,
            object_hook=reader.map,
            list_hook=reader.list,
            ext_hook=_no_extension,
            max_array_len=LARGEST_MESSAGE // OF_A_CONTAINER,
            max_map_len=LARGEST_MESSAGE // OF_A_CONTAINER,
        )
    except WireError:
        raise
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__} {error}".rstrip(" .")
        raise WireError(f"the message is no msgpack as openpi and vla-eval write it: {reason}.") from error


def _no_extension(code: int, _: bytes) -> Any:
    raise WireError(f"the message holds an extension of msgpack (code {code}), which neither protocol has.")


class _Reader:
    """Turns marked maps into arrays, within the bytes that one message may take."""

    def __init__(self) -> None:
        self._left = LARGEST_MESSAGE

    def map(self, fields: dict[Any, Any]) -> Any:
        """Reads a map whose contents have been read."""
        self._spend(OF_A_CONTAINER)
        for marker, read in (("__ndarray__", _array), ("__npgeneric__", _scalar), ("__image__", self._picture)):
            if marker in fields or marker.encode() in fields:
                return read({name.decode() if isinstance(name, bytes) else name: x for name, x in fields.items()})
        return fields

    def list(self, values: list[Any]) -> list[Any]:
        """Reads a list whose contents have been read."""
        self._spend(OF_A_CONTAINER)
        return values

    def _picture(self, fields: Mapping[str, Any]) -> NDArray[Any]:
        """Reads a picture, uint8 [H, W] or [H, W, channels]."""
        if fields["format"] == "raw":
            return _array({"dtype": "|u1", **fields})
        if fields["format"] not in PICTURES:
            raise WireError(f"a picture has the format {fields['format']!r}; {', '.join(PICTURES)} and raw are read.")
        shape = _shape(fields["shape"])
        self._spend(math.prod(shape))
        try:
            from PIL import Image
        except ImportError as error:
            raise WireError("compressed pictures need the package pillow: pip install 'rlpipe[serve]'") from error
        try:
            with Image.open(io.BytesIO(fields["data"]), formats=[PICTURES[fields["format"]]]) as picture:
                size = (picture.height, picture.width)
                pixels = np.array(picture) if size == shape[:2] else np.empty(0)
        except Exception as error:  # Pillow promises no common base of what a damaged picture raises
            raise WireError(f"a picture cannot be read: {error}.") from error
        if pixels.dtype != np.uint8 or pixels.size != math.prod(shape):
            raise WireError(f"a picture of {size[0]} x {size[1]} pixels came with the shape {shape}.")
        return pixels.reshape(shape)

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise WireError(f"the message would take more than {LARGEST_MESSAGE:,} bytes of memory.")


def _array(fields: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape, content = _dtype(fields["dtype"]), _shape(fields["shape"]), fields["data"]
    size = dtype.itemsize * math.prod(shape)
    if not isinstance(content, bytes) or len(content) != size:
        count = f"{len(content):,} bytes" if isinstance(content, bytes) else f"a {type(content).__name__}"
        raise WireError(f"an array {shape} of {dtype} has {size:,} bytes, but {count} came.")
    if dtype.kind == "b":  # a byte that is neither 0 nor 1 would be both true and false
        return np.array(np.ndarray(shape, np.uint8, content) != 0)
    array: NDArray[Any] = np.ndarray(shape, dtype, content).astype(dtype.newbyteorder("="))
    return array


def _scalar(fields: Mapping[str, Any]) -> Any:
    if not isinstance(fields["data"], bool | int | float | str):
        raise WireError(f"a scalar of NumPy is a {type(fields['data']).__name__}.")
    return _dtype(fields["dtype"]).type(fields["data"]).item()


def _dtype(text: Any) -> np.dtype[Any]:
    if not isinstance(text, str) or len(text) > 16:
        raise WireError(f"{str(text)[:40]!r} is no type of numbers or text.")
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, SyntaxError) as error:
        raise WireError(f"{text!r} is no type of numbers or text.") from error
    _check_type(dtype, OPENPI_KINDS)
    return dtype


def _check_type(dtype: np.dtype[Any], kinds: str) -> None:
    if dtype.kind not in kinds or (dtype.kind != "U" and dtype.itemsize > 8):
        text = " and text" if "U" in kinds else ""
        raise WireError(f"arrays of {dtype} are not sent: truth values and numbers of at most 64 bits{text} are.")


def _shape(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list | tuple) or not all(type(size) is int and size >= 0 for size in sizes):
        raise WireError(f"{str(sizes)[:40]} is no shape of an array.")
    return tuple(sizes)


# --- frames of vla-eval

FRAME_FIELDS = ("type", "payload", "seq", "timestamp")
PROTOCOL_VERSION = 1


class Frame(NamedTuple):
    """Frame of vla-eval's protocol.

    Attributes:
        type: hello, observation, action, episode_start, episode_end or error.
        payload: contents.
        seq: number of the request; its answer has the same.
    """

    type: str
    payload: dict[str, Any]
    seq: int

    def packed(self) -> bytes:
        """Packs the frame.

        Raises:
            WireError: as of ``pack_vla_eval``.
        """
        return pack_vla_eval({**self._asdict(), "timestamp": time.time()})

    @classmethod
    def read(cls, message: Any) -> Frame:
        """Unpacks a frame.

        Raises:
            WireError: it is none.
        """
        fields = mapping(message)
        if missing := [name for name in FRAME_FIELDS if name not in fields]:
            raise WireError(f"the message lacks {', '.join(missing)}, which every frame of vla-eval has.")
        frame = cls(fields["type"], fields["payload"], fields["seq"])
        if not (isinstance(frame.type, str) and isinstance(frame.payload, dict) and type(frame.seq) is int):
            raise WireError("the message has a type, payload or seq of the wrong kind for a frame of vla-eval.")
        return frame


def mapping(message: Any) -> dict[str, Any]:
    """Unpacks a message that must be a map.

    Raises:
        WireError: it is text, no such message, or no map.
    """
    if isinstance(message, str):
        raise WireError(f"a text came where packed bytes are expected: {shortened(message)!r}.")
    fields = unpack(message)
    if not isinstance(fields, dict):
        raise WireError(f"the message holds a {type(fields).__name__}, but a map is expected.")
    return fields


def shortened(text: str, limit: int = 300) -> str:
    """Returns the last part of a text on one line, where a traceback has its reason."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"...{text[-limit:]}"
