"""One end of the private line between parent and rank: JSON objects, one a line, over an inherited socket.

Knows bytes, lines and the codec; it does not know what the messages mean or who answers them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from backend import codec

MAX_LINE_BYTES = 4 * 2**20  # the largest message, a sidecar with 12 media reports, is under 100 KB
_EXCERPT = 120
_RECEIVE_BYTES = 65_536


class ChannelError(Exception):
    """A line could not be sent or understood; names the peer."""


class Unreachable(ChannelError):
    """A message could not be delivered: the peer is gone or does not read."""


class Closed:
    """What a reader delivers last: the peer's end of the line is gone."""


CLOSED = Closed()
Sink = Callable[[Any], None]


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a fresh line. Neither is inherited by a child unless passed on purpose."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class Channel:
    """Send from any thread; received messages go to one sink, in order, on the reader's thread.

    `kinds` is the union of dataclasses that may arrive. The sink gets messages, then either one ChannelError (garbled
    or oversized line; nothing is read after it) or `CLOSED` (end of file).
    """

    def __init__(self, sock: socket.socket, kinds: Any, peer: str, *, send_timeout_s: float | None = None) -> None:
        self._sock = sock
        self._kinds = kinds
        self._peer = peer
        self._send_lock = threading.Lock()
        self._reader: threading.Thread | None = None
        if send_timeout_s is not None:  # a stopped peer must not block its sender for ever once the buffer is full
            whole = int(send_timeout_s)
            micros = int((send_timeout_s - whole) * 1e6)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, micros))

    def send(self, message: Any) -> None:
        """Write one message. Raises Unreachable when the peer is gone or stuck, ChannelError for a message too long."""
        line = json.dumps(codec.encode_tagged(message), separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise ChannelError(f"{self._peer}: a {type(message).__name__} of {len(line)} bytes is too long to send")
        try:
            with self._send_lock:
                self._sock.sendall(line)
        except OSError as error:
            raise Unreachable(f"{self._peer}: cannot send {type(message).__name__}: {error}") from error

    def read_into(self, sink: Sink) -> None:
        """Start the reader thread."""
        self._reader = threading.Thread(target=self._read, args=(sink,), name=f"read {self._peer}", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Hang up; the peer sees end of file. Idempotent."""
        with contextlib.suppress(OSError):  # the peer was first, or it is closed already: nobody can be told
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join()
        self._sock.close()

    def _read(self, sink: Sink) -> None:
        pending = bytearray()
        while True:
            try:
                chunk = self._sock.recv(_RECEIVE_BYTES)
            except OSError:  # a reset is an end of file with unread data on the other side
                chunk = b""
            if not chunk:
                sink(CLOSED if not pending else ChannelError(f"{self._peer}: hung up in mid-line: {excerpt(pending)}"))
                return
            pending += chunk
            *lines, rest = pending.split(b"\n")
            pending = bytearray(rest)
            try:
                for line in lines:
                    sink(self._parse(line))
                if len(pending) > MAX_LINE_BYTES:
                    raise ChannelError(f"{self._peer}: sent a line of more than {MAX_LINE_BYTES} bytes")
            except ChannelError as error:
                sink(error)
                return

    def _parse(self, line: bytes | bytearray) -> Any:
        if len(line) > MAX_LINE_BYTES:
            raise ChannelError(f"{self._peer}: sent a line of more than {MAX_LINE_BYTES} bytes")
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise ValueError(f"expected an object, got {type(data).__name__}")
            return codec.decode_tagged(self._kinds, data)
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"{self._peer}: sent a line nobody can read: {excerpt(line)} ({error})") from error


def excerpt(line: bytes | bytearray) -> str:
    """The start of `line`, fit to be shown."""
    return repr(bytes(line[:_EXCERPT]))[1:]
