"""Channels between workers: one socket per pair of workers carries all exchanges, with credits per channel.

A channel is one exchange from one sender to one receiver. A sender may have ``window`` bytes in flight. Further rows
wait in its own queue, which ``room`` reports, until the receiver has *processed* rows and returns credit (or holds them
on its disk, ``InputChannel.credit_early``). So a slow operator slows down its senders, back to the sources, and windows
bound the memory. An operator that emits many rows at once may exceed them: these wait on disk.

Rule: channels are FIFO, except for an unaligned barrier. ``overtake`` returns the rows that it overtakes, which become
part of the snapshot. Nothing here blocks: the worker's only thread sends and receives. Sockets belong to one session,
so bytes that a worker of an earlier session still sends are not received.
"""

from __future__ import annotations

import enum
import math
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import MIN_EVENT_TIME, Watermark
from kafka_eos.runtime.exchange.spilling_queue import SpillingQueue, size_of
from kafka_eos.runtime.transport.data_socket import DataSocket

_HEAD = struct.Struct("<IBHQ")
"""Length of the body, kind, number of the exchange, epoch (barrier), bytes (credit) or time (watermark)."""
_SOCKET_BUFFER = 4 << 20


class FrameKind(enum.IntEnum):
    ROWS = 0
    BARRIER = 1
    CREDIT = 2
    ALIGNED = 3
    """A barrier that overtakes nothing, in any checkpoint mode."""
    WATERMARK = 4
    IDLE = 5
    """A watermark of an idle channel."""


_KINDS = frozenset(FrameKind)
_BARRIERS = (FrameKind.BARRIER, FrameKind.ALIGNED)


class _ChannelEvent(Struct, frozen=True):
    """A barrier or a watermark on a channel (Flink: an event, as opposed to a buffer). ``number``: as in the head."""

    kind: FrameKind
    number: int


_Waiting: TypeAlias = bytes | _ChannelEvent
"""A frame of rows, or an event between frames."""


class RowsArrived(Struct, frozen=True):
    """A frame of rows has arrived from another worker."""

    edge: int
    sender: int
    frame: bytes


class BarrierArrived(Struct, frozen=True):
    """The barrier of ``epoch`` has arrived, after everything that ``sender`` sent on ``edge`` before it."""

    edge: int
    sender: int
    epoch: int
    aligned: bool


class WatermarkArrived(Struct, frozen=True):
    """A watermark has arrived, after everything that was sent before it."""

    edge: int
    sender: int
    watermark: Watermark


Arrival = RowsArrived | BarrierArrived | WatermarkArrived


class _Channel(Struct):
    """The sending end of a channel. ``waiting`` has no credit yet."""

    waiting: SpillingQueue[_Waiting]
    on_the_way: int = 0
    overtaken_until: int = -1
    """Barriers up to this epoch are dropped: a newer one has overtaken them."""


class _Peer:
    """The worker at the other end of a socket."""

    def __init__(self, subtask: int, sock: DataSocket) -> None:
        self.subtask, self.sock = subtask, sock
        self.urgent: deque[bytes] = deque()
        self.queued: deque[tuple[int, FrameKind, bytes]] = deque()
        """Frames in order: exchange, kind, the bytes with their head."""
        self.partial = memoryview(b"")
        self.received = bytearray()
        self.gone = False
        self.gone_since = math.inf
        sock.setblocking(False)
        if isinstance(sock, socket.socket) and sock.family == socket.AF_UNIX:  # TCP adapts its buffers itself
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)

    @property
    def idle(self) -> bool:
        return not (self.partial or self.urgent or self.queued)

    def write(self) -> None:
        """Write what the socket accepts now."""
        while not self.idle:
            if not self.partial:
                self.partial = memoryview(self.urgent.popleft() if self.urgent else self.queued.popleft()[2])
            try:
                self.partial = self.partial[self.sock.send(self.partial) :]
            except BlockingIOError:
                return
            except OSError:
                self.lose()

    def read(self) -> Iterator[tuple[int, FrameKind, int, bytes]]:
        """Yield complete frames that have arrived: exchange, kind, number, body."""
        try:
            while chunk := self.sock.recv(LIMITS.socket_read_bytes):
                self.received += chunk
                if len(chunk) < LIMITS.socket_read_bytes:
                    break
            else:
                self.lose()
        except BlockingIOError:
            pass
        except OSError:
            self.lose()
        yield from self._frames()

    def _frames(self) -> Iterator[tuple[int, FrameKind, int, bytes]]:
        start, size = 0, len(self.received)
        while size - start >= _HEAD.size:
            length, kind, edge, number = _HEAD.unpack_from(self.received, start)
            end = start + _HEAD.size + length
            if kind not in _KINDS:
                self.lose()  # a broken connection: no worker sends such bytes
                return
            if end > size:
                break
            yield edge, FrameKind(kind), number, bytes(memoryview(self.received)[start + _HEAD.size : end])
            start = end
        del self.received[:start]

    def lose(self) -> None:
        """Mark the worker as lost.

        The supervisor detects it too and ends the session; until then frames are dropped.
        """
        self.gone = True
        self.gone_since = min(self.gone_since, time.monotonic())
        self.urgent.clear()
        self.queued.clear()
        self.partial = memoryview(b"")


class Network:
    """The channels of one worker in one session. ``peers``: sockets to the other subtasks; ``edges``: exchanges.

    ``disk`` is a directory of the session.
    """

    def __init__(self, peers: Mapping[int, DataSocket], edges: int, window: int, disk: Path) -> None:
        self._peers = {subtask: _Peer(subtask, sock) for subtask, sock in peers.items()}
        self.window = window
        self._channels = {
            (edge, target): _Channel(SpillingQueue(disk / f"unsent-{edge}-{target}", window, _rows_of, size_of))
            for edge in range(edges)
            for target in peers
        }
        self._selector = selectors.DefaultSelector()
        for peer in self._peers.values():
            self._selector.register(peer.sock, selectors.EVENT_READ, peer)
        self._watching_writes: set[int] = set()

    def send(self, edge: int, target: int, frame: bytes) -> None:
        """Send rows, now or when there is credit for them."""
        self._offer(edge, target, frame)

    def send_barrier(self, edge: int, target: int, epoch: int, aligned: bool) -> None:
        """Send a barrier behind everything that was sent before. ``aligned``: the receivers do the same."""
        self._offer(edge, target, _ChannelEvent(FrameKind.ALIGNED if aligned else FrameKind.BARRIER, epoch))

    def send_watermark(self, edge: int, target: int, watermark: Watermark) -> None:
        """Send a watermark behind everything that was sent before.

        A watermark that a barrier overtakes is not stored.
        """
        kind = FrameKind.IDLE if watermark.idle else FrameKind.WATERMARK
        self._offer(edge, target, _ChannelEvent(kind, watermark.time - MIN_EVENT_TIME))

    def overtake(self, edge: int, target: int, epoch: int) -> Iterator[bytes]:
        """Send a barrier before everything that was not sent yet; return the frames of rows that it overtakes.

        They are still sent, so read them at once. Older barriers among them are dropped: their epoch was aborted.
        """
        peer, channel = self._peers[target], self._channels[edge, target]
        peer.queued = deque(item for item in peer.queued if item[0] != edge or item[1] not in _BARRIERS)
        channel.overtaken_until = epoch
        peer.urgent.append(_HEAD.pack(0, FrameKind.BARRIER, edge, epoch))
        queued = (data[_HEAD.size :] for at, kind, data in peer.queued if at == edge and kind is FrameKind.ROWS)
        return chain(queued, filter(None, map(_rows_of, channel.waiting)))

    def credit(self, edge: int, sender: int, size: int) -> None:
        """Return credit for rows of ``size`` bytes to the sender."""
        peer = self._peers[sender]
        if not peer.gone:
            peer.urgent.append(_HEAD.pack(0, FrameKind.CREDIT, edge, size))

    def room(self, edge: int) -> bool:
        """Return whether more rows may be produced for this exchange. False while one of its receivers is behind."""
        return not any(self._channels[edge, target].waiting for target in self._peers)

    def find_lost_peer(self, before: float) -> int | None:
        """Return a worker whose connection ended before this time, by the monotonic clock, if there is one."""
        return next((peer.subtask for peer in self._peers.values() if peer.gone_since < before), None)

    def pump(self, timeout: float) -> list[Arrival]:
        """Send and receive what is possible; wait at most ``timeout`` seconds for an event."""
        for peer in self._peers.values():
            self._flush(peer)
        arrived: list[Arrival] = []
        for key, events in self._selector.select(timeout):
            peer = key.data
            if events & selectors.EVENT_READ:
                arrived += self._received(peer)
            self._flush(peer)
        return arrived

    def close(self) -> None:
        self._selector.close()
        for peer in self._peers.values():
            peer.sock.close()
        for channel in self._channels.values():
            channel.waiting.close()

    # ------------------------------------------------------------ inside

    def _offer(self, edge: int, target: int, item: _Waiting) -> None:
        self._channels[edge, target].waiting.append(item)
        self._release(edge, target)

    def _release(self, edge: int, target: int) -> None:
        """Queue frames with credit for the socket. One frame may always pass, however large it is."""
        peer, channel = self._peers[target], self._channels[edge, target]
        while channel.waiting and not peer.gone:
            item = channel.waiting[0]
            if isinstance(item, _ChannelEvent):
                if item.kind not in _BARRIERS or item.number > channel.overtaken_until:
                    peer.queued.append((edge, item.kind, _HEAD.pack(0, item.kind, edge, item.number)))
            elif channel.on_the_way and channel.on_the_way + len(item) > self.window:
                return
            else:
                channel.on_the_way += len(item)
                peer.queued.append((edge, FrameKind.ROWS, _HEAD.pack(len(item), FrameKind.ROWS, edge, 0) + item))
            channel.waiting.popleft()

    def _received(self, peer: _Peer) -> Iterator[Arrival]:
        for edge, kind, number, body in peer.read():
            match kind:
                case FrameKind.ROWS:
                    yield RowsArrived(edge, peer.subtask, body)
                case FrameKind.BARRIER | FrameKind.ALIGNED:
                    yield BarrierArrived(edge, peer.subtask, number, kind is FrameKind.ALIGNED)
                case FrameKind.WATERMARK | FrameKind.IDLE:
                    watermark = Watermark(number + MIN_EVENT_TIME, idle=kind is FrameKind.IDLE)
                    yield WatermarkArrived(edge, peer.subtask, watermark)
                case FrameKind.CREDIT:
                    self._channels[edge, peer.subtask].on_the_way -= number
                    self._release(edge, peer.subtask)

    def _flush(self, peer: _Peer) -> None:
        """Write, and watch for the socket to become writable only while there is more to write."""
        peer.write()
        if peer.gone:
            if peer.sock in self._selector.get_map():
                self._selector.unregister(peer.sock)
            self._watching_writes.discard(peer.subtask)
            return
        wanted = not peer.idle
        if wanted != (peer.subtask in self._watching_writes):
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(peer.sock, events, peer)
            (self._watching_writes.add if wanted else self._watching_writes.discard)(peer.subtask)


def _rows_of(item: _Waiting) -> bytes | None:
    return item if isinstance(item, bytes) else None
