"""Malicious clients: frames that are almost valid, and a gateway's answers to them."""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from everstep.agent_domain.stream.channels import channel_data
from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.wires.closing import CLOSINGS
from tests.broadcast_gateway.gateways import KEY, joining
from tests.broadcast_gateway.writers import SESSION

TEXT, BINARY, CONTINUED, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA
FIN = 0x80

OURS = {closing.native for closing in CLOSINGS} | {closing.pusher for closing in CLOSINGS}
"""The codes of the table."""
RFC = {1002, 1007, 1009}
"""Codes for bytes that are no WebSocket any more, which a close code of the table could not report."""
PATIENCE = 30.0

NASTY = (
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xf0\x9f\x98\x80"',
    b"1e999",
    b"-0",
    b"1" * 5000,
    b"0.1",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"[" * 5000,
    b'{"a":' * 3000,
    b'""',
    b'"' + b"x" * 300 + b'"',
    b"9223372036854775808",
    b"-1",
)
"""Bodies in place of valid JSON."""


def frame(
    data: bytes,
    dice: Random,
    *,
    opcode: int = TEXT,
    first: int | None = None,
    size: int | None = None,
    is_masked: bool = True,
) -> bytes:
    """A client's frame; `size` may be wrong, and `first` may be any byte."""
    length = len(data) if size is None else size
    head = bytes([FIN | opcode if first is None else first])
    flag = 0x80 if is_masked else 0
    if length < 126:
        head += bytes([flag | length])
    elif length < 1 << 16:
        head += bytes([flag | 126]) + length.to_bytes(2)
    else:
        head += bytes([flag | 127]) + length.to_bytes(8)
    if not is_masked:
        return head + data
    mask = dice.randbytes(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


# Valid frames before mutation.


def _a_position(dice: Random) -> Position:
    return Position(dice.choice([0, 0, 1, 5, 10**9]), dice.choice([None, "first", "another"]))


def _a_channel(dice: Random) -> str:
    stream_id = dice.choice([SESSION, SESSION, UUID(int=dice.getrandbits(128))])
    return dice.choice([f"agent.session.{stream_id}", f"agent.{stream_id}", f"agent.execution.{stream_id}"])


def native_sentence(dice: Random, socket_id: str) -> bytes:
    """A valid frame of the native protocol."""
    del socket_id
    sentences = [
        {"type": "hello", "token": "eve"},
        {"type": "sub", "channel": _a_channel(dice), "since": _a_position(dice).to_dict()},
        {"type": "sub", "channel": _a_channel(dice)},
        {"type": "unsub", "channel": _a_channel(dice)},
        {"type": "refresh", "token": "eve"},
        {"type": "ping"},
    ]
    return json.dumps(dice.choice(sentences)).encode()


def pusher_sentence(dice: Random, socket_id: str) -> bytes:
    """A valid frame of Pusher's protocol."""
    channel = f"private-{_a_channel(dice)}"
    data = dice.choice([None, channel_data(_a_position(dice)), "{}", "[", '{"since":3}'])
    sentences: list[dict[str, Any]] = [
        joining(socket_id, channel, data),
        joining(socket_id, channel, data),
        joining("1.1", channel, data),
        {"event": "pusher:unsubscribe", "data": {"channel": channel}},
        {"event": "pusher:ping", "data": {}},
        {"event": "pusher:pong", "data": {}},
        {"event": "client-typing", "channel": channel, "data": {"a": "b"}},
        {"event": "pusher:signin", "data": "{}"},
    ]
    return json.dumps(dice.choice(sentences)).encode()


def mutate(data: bytes, dice: Random) -> bytes:
    """A small change of a valid frame."""
    at, size = dice.randrange(len(data)), dice.randint(1, 6)
    match dice.randrange(6):
        case 0:
            return data[:at] + dice.randbytes(size) + data[at + size :]
        case 1:
            return data[:at] + data[at + size :]
        case 2:
            return data[:at] + data[at : at + size] * dice.randint(2, 40) + data[at + size :]
        case 3:
            return data[:at] + dice.choice([b'"', b"{", b"}", b",", b"\\", b"\x00", b"\xff", b"\xed\xa0\x80"])
        case 4:
            return data[: data.index(b":") + 1] + dice.choice(NASTY) + b"}"
        case _:
            return data[: data.rindex(b":") + 1] + dice.choice(NASTY) + b"}"


# Attacks: bytes that are one frame or resemble one.

Attack = Callable[[bytes, Random], bytes]


def as_it_is(data: bytes, dice: Random) -> bytes:
    return frame(data, dice)


def almost_right(data: bytes, dice: Random) -> bytes:
    return frame(mutate(data, dice), dice)


def noise(data: bytes, dice: Random) -> bytes:
    return frame(dice.randbytes(len(data)), dice, opcode=dice.choice([TEXT, BINARY]))


def no_frame_at_all(data: bytes, dice: Random) -> bytes:
    del data
    # Not a close frame.
    return bytes([dice.choice([0x00, 0x41, 0x83, 0x8B, 0x9A, 0xFF])]) + dice.randbytes(dice.randint(1, 80))


def in_pieces(data: bytes, dice: Random) -> bytes:
    """A fragmented message with pings in between."""
    cut = dice.randrange(len(data))
    between = frame(dice.randbytes(3), dice, opcode=dice.choice([PING, PONG]))
    return frame(data[:cut], dice, first=TEXT) + between + frame(data[cut:], dice, opcode=CONTINUED)


def in_wrong_pieces(data: bytes, dice: Random) -> bytes:
    """Continues a message that never began, or begins a second one inside the first."""
    if dice.random() < 0.5:
        return frame(data, dice, opcode=CONTINUED)
    return frame(data, dice, first=TEXT) + frame(data, dice)


def in_many_pieces(data: bytes, dice: Random) -> bytes:
    """Fragments that exceed the limit together."""
    pieces = b"".join(frame(data * 30, dice, first=CONTINUED) for _ in range(20))
    return frame(data, dice, first=TEXT) + pieces


def broken_text(data: bytes, dice: Random) -> bytes:
    at = dice.randrange(len(data))
    broken = dice.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8"])
    return frame(data[:at] + broken + data[at:], dice)


def lying_size(data: bytes, dice: Random) -> bytes:
    """The header announces more or less than the payload."""
    size = dice.choice(
        [0, 1, 125, 126, 65_535, 65_537, 1 << 20, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    )
    return frame(data, dice, size=size)


def too_large(data: bytes, dice: Random) -> bytes:
    return frame(data * (20_000 // len(data)), dice)


def control(data: bytes, dice: Random) -> bytes:
    """A control frame that is too long, fragmented, or valid."""
    opcode = dice.choice([PING, PONG])
    if dice.random() < 0.6:
        return frame(dice.randbytes(dice.randrange(126)), dice, opcode=opcode)
    return frame(data, dice, first=opcode) if dice.random() < 0.5 else frame(data * 4, dice, opcode=opcode)


def other_header(data: bytes, dice: Random) -> bytes:
    """Reserved bits and opcodes, or no mask."""
    if dice.random() < 0.3:
        return frame(data, dice, is_masked=False)
    return frame(data, dice, first=dice.choice([0x83, 0x87, 0x8B, 0x8F, 0xC1, 0xA1, 0x91, 0xF1, 0x03]))


def goodbye(data: bytes, dice: Random) -> bytes:
    """A close frame with a valid or invalid code."""
    del data
    if dice.random() < 0.2:
        return frame(dice.choice([b"", b"\x03", b"\x03\xe8\xff\xfe"]), dice, opcode=CLOSE)
    code = dice.choice(
        [0, 999, 1000, 1001, 1004, 1005, 1006, 1015, 1016, 2999, 3000, 3500, 4999, 5000, 65_535]
    )
    return frame(struct.pack("!H", code) + b"bye", dice, opcode=CLOSE)


ALLOWED = {None, 1000, 1001, 3000, 3500, 4999}
"""Codes of close frames that are echoed."""

ATTACKS: dict[Attack, int] = {
    as_it_is: 40,
    almost_right: 30,
    in_pieces: 5,
    control: 5,
    noise: 2,
    no_frame_at_all: 2,
    in_wrong_pieces: 2,
    in_many_pieces: 1,
    broken_text: 2,
    lying_size: 3,
    too_large: 1,
    other_header: 2,
    goodbye: 2,
}
"""The weight of each attack."""


@dataclass
class Visitor:
    """A raw connection; its replies are parsed by hand."""

    port: int
    dice: Random
    sent: int = 0
    said_goodbye: bool = False
    _socket: socket.socket = field(default_factory=socket.socket)
    _heard: bytes = b""

    async def visit(self, frames: int) -> str:
        """Connect, send the attacks, and return the outcome."""
        self._socket.setblocking(False)
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._visit(frames)
        finally:
            self._socket.close()

    async def _visit(self, frames: int) -> str:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self.port))
        is_pusher = self.dice.random() < 0.5
        if not await self._shake_hands(is_pusher):
            return "no handshake"
        socket_id, sentence = "", native_sentence
        if is_pusher:
            _, data = await self._frame() or (0, b"")
            socket_id, sentence = json.loads(json.loads(data)["data"])["socket_id"], pusher_sentence
        elif self.dice.random() < 0.9:
            await self._send(frame(b'{"type":"hello","token":"eve"}', self.dice))
        attacks = self.dice.choices(list(ATTACKS), list(ATTACKS.values()), k=frames)
        for attack in attacks:
            data = attack(sentence(self.dice, socket_id), self.dice)
            self.said_goodbye |= attack is goodbye
            self.sent += 1
            if not await self._send(data):
                break
        match self.dice.randrange(20):
            case 0:
                # The connection ends in the middle of a frame, without a close.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return "vanished"
            case 1:
                await self._send(frame(b"never ends", self.dice)[:-3])
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
                while await self._more():
                    pass
                return "vanished"
            case _:
                return await self._end()

    async def _shake_hands(self, is_pusher: bool) -> bool:
        """Sometimes an invalid one; then there is only a response, or an end."""
        path = f"/app/{KEY}?protocol=7" if is_pusher else "/v1"
        request = (
            f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            f"Sec-WebSocket-Protocol: everstep.v1\r\n\r\n"
        ).encode()
        if self.dice.random() < 0.9:
            await self._send(request)
            while b"\r\n\r\n" not in self._heard:
                assert await self._more(), self._heard
            self._heard = self._heard.partition(b"\r\n\r\n")[2]
            return True
        self.sent += 1
        await self._send(mutate(request, self.dice) + b"\r\n\r\n" + self.dice.randbytes(50))
        while await self._more():
            pass
        return False

    async def _end(self) -> str:
        """Closed with a known code, or still usable."""
        asked = self.dice.randbytes(8)
        await self._send(frame(asked, self.dice, opcode=PING))
        while received := await self._frame():
            opcode, data = received
            if opcode == PONG and data == asked:
                return "usable"
            if opcode == CLOSE:
                code = struct.unpack("!H", data[:2])[0] if data else None
                assert code in OURS | RFC or (self.said_goodbye and code in ALLOWED), code
                return f"closed {code}"
            assert opcode in (TEXT, PONG, PING), opcode
        raise AssertionError("it ended without a word")

    async def _send(self, data: bytes) -> bool:
        """Send in one piece or several; returns whether the gateway still reads."""
        loop = asyncio.get_running_loop()
        cut = self.dice.choice([len(data), self.dice.randrange(len(data))])
        try:
            for part in filter(None, (data[:cut], data[cut:])):
                await loop.sock_sendall(self._socket, part)
                await asyncio.sleep(0)
        except ConnectionError:
            return False
        return True

    async def _more(self) -> bytes:
        try:
            data = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        except ConnectionError:
            return b""
        self._heard += data
        return data

    async def _frame(self) -> tuple[int, bytes] | None:
        """The next frame as servers send them: in one piece, without a mask."""
        while True:
            heard = self._heard
            start = 2
            if len(heard) >= 2:
                size = heard[1]
                if size >= 126:
                    start = 4 if size == 126 else 10
                    size = int.from_bytes(heard[2:start])
                if len(heard) >= start + size:
                    self._heard = heard[start + size :]
                    return heard[0] & 0x0F, heard[start : start + size]
            if not await self._more():
                return None
