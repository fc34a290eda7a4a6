"""What travels in a deployed federation: orders to clients and their replies, as framed bytes.

A frame is a short header in JSON, with a checksum, around the bytes of a `Message`. Nothing is pickled, and
nothing in a frame is run. The tag of an order is a digest of its bytes: a reply names the order that it
answers, and a client's state the order that it came from, so neither can be taken for another.

>>> order = Order(Header("run", (1, 7)), Message("FedAvg", "local", 3, 0, 2))
>>> Order.unpack(order.pack()).message.round
3
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from fairlead.core import frame
from fairlead.core.message import Message
from fairlead.errors import FairleadError

VERSION = 1
MOST_HEADER = 1 << 16
"""Bytes that the header of a frame may have."""
_MAGIC = b"fldp"
START = ""
"""The tag of the state that a client starts with."""


def framed(about: Mapping[str, Any], body: bytes) -> bytes:
    """A header and a body as one frame."""
    header = json.dumps(about, separators=(",", ":")).encode()
    if len(header) > MOST_HEADER:
        raise FairleadError(f"the header of a frame has {len(header)} bytes: {MOST_HEADER} at most")
    return frame.framed(_MAGIC, VERSION, header, body)


def opened(data: bytes, most: int | None = None) -> tuple[dict[str, Any], bytes]:
    """The header and the body of a frame of at most so many bytes; anything else is refused in one
    sentence."""
    if most is not None and len(data) > most:
        raise FairleadError(f"the frame has {len(data)} bytes: {most} at most are expected")
    length, rest = frame.unframed(data, _MAGIC, VERSION, "frame")
    try:
        about = json.loads(rest[:length]) if length <= MOST_HEADER else None
    except (ValueError, RecursionError) as error:
        raise FairleadError("the header of the frame cannot be read") from error
    if not isinstance(about, dict):
        raise FairleadError("the header of the frame cannot be read")
    return about, rest[length:]


def tag_of(data: bytes) -> str:
    """The tag of an order: a digest of its bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


@dataclass(frozen=True)
class Header:
    """What a client is told beside the message."""

    run: str
    """The name of the run; a client keeps the states of different runs apart."""
    number: tuple[int, int]
    """Rises from order to order, also when the server starts again."""
    base: str = START
    """The tag of the state to begin with: that of the client's last upload that counted."""
    keep: tuple[str, ...] = ()
    """States that the server may go back to."""
    first_step: int = 0
    idle: bool = False
    """Whether there are no steps to take."""
    hold: bool = False
    """Whether to hold the vectors for later orders."""
    add: bool = False
    """Whether to hold them beside those that are held already, or instead of them."""
    names: tuple[str, ...] = ()
    """All that the program is given, in order."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Digests of the vectors that are not sent, as the client holds them."""
    numbers: tuple[str, ...] = ()
    """The values that are plain numbers."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the values that are no vectors."""
    measuring: bool = False
    """Whether the program belongs to a measure: nothing is kept of it."""
    measures: tuple[str, ...] = ()
    """The measures to take inside the program, by name."""


@dataclass(frozen=True)
class Order:
    """One exchange, for one client. Without a message it asks who the client is."""

    header: Header
    message: Message | None = None

    def pack(self) -> bytes:
        """The order as bytes."""
        body = b"" if self.message is None else self.message.pack()
        return framed(asdict(self.header), body)

    @classmethod
    def unpack(cls, data: bytes) -> Order:
        """An order from its bytes."""
        about, body = opened(data)
        try:
            first, second = about["number"]
            about["number"] = int(first), int(second)
            for name in ("keep", "names", "numbers", "measures"):
                about[name] = tuple(about[name])
            about["shapes"] = {n: tuple(map(int, s)) for n, s in about["shapes"].items()}
            header = Header(**about)
        except (KeyError, TypeError, ValueError) as error:
            raise FairleadError("the header of the order cannot be read") from error
        return cls(header, Message.unpack(body) if body else None)


@dataclass(frozen=True)
class Reply:
    """What a client answers: an upload, who it is, or why it cannot answer.

    tag: of the order. kept: whether the client has a new state. gradients: of single samples. codes: for
    each encoded vector the number of its compressor and the two words of its noise. lacks: whether it lacks
    vectors that were not sent. about: who the client is.
    """

    tag: str
    client: int
    message: Message | None = None
    kept: bool = False
    gradients: int = 0
    codes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    lacks: bool = False
    error: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The reply as bytes."""
        about = {name: value for name, value in vars(self).items() if name != "message"}
        return framed(about, b"" if self.message is None else self.message.pack())

    @classmethod
    def unpack(cls, data: bytes, most: int | None = None) -> Reply:
        """A reply from its bytes, of which there may be at most so many."""
        about, body = opened(data, most)
        kinds = {
            "tag": str, "client": int, "kept": bool, "gradients": int, "codes": dict, "lacks": bool,
            "error": str, "about": dict,
        }  # fmt: skip
        if set(about) != set(kinds) or any(type(about[n]) is not k for n, k in kinds.items()):
            raise FairleadError("the header of the reply has other fields than a reply")
        for code in about["codes"].values():
            if not isinstance(code, list) or [type(n) for n in code] != [int] * 3:
                raise FairleadError("the header of the reply has codes that cannot be read")
        about["codes"] = {name: tuple(code) for name, code in about["codes"].items()}
        return cls(**about, message=Message.unpack(body) if body else None)


@dataclass(frozen=True)
class Sealed:
    """An order that was sent."""

    order: Order
    data: bytes

    @cached_property
    def tag(self) -> str:
        """Its tag."""
        return tag_of(self.data)

    @classmethod
    def of(cls, order: Order) -> Sealed:
        return cls(order, order.pack())
