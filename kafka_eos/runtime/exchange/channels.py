"""The exchanges of a plan as one worker has them: what goes into them, what comes out, and what is on the wire.

Exchanges have numbers, the same in every worker: their *edges*. Rows for this worker itself are no frames and cross no
network: ``deliver`` gets them.

Rule: a frame says what its rows say. What waits for long is a frame, on the local disk; what is made and taken in this
worker stays as it is.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.codec import ListCodec
from kafka_eos.abc.state import InFlight
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.config.settings import Settings
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import Feedback, Forward, Node, PartialFold, Plan
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.exchange.input_queues import Input, Marker, Rows, Waiting
from kafka_eos.runtime.exchange.network import Arrival, Network
from kafka_eos.runtime.exchange.output_buffers import Outgoing
from kafka_eos.runtime.exchange.routing import Router, router
from kafka_eos.runtime.exchange.spilling_queue import SpillingQueue, size_of
from kafka_eos.runtime.operators.event_time import Signal

_ROW = 64
"""Bytes of a row on the disk, about."""
Deliver = Callable[[int, Batch[Any]], None]
"""Takes rows of this worker for itself, with their edge."""


class Exchanges:
    """``closing`` lets go of files and connections when it is left; ``local`` is where the files are."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        nodes: Sequence[Node],
        peers: Mapping[int, socket.socket],
        subtask: int,
        parallelism: int,
        local: Path,
        closing: ExitStack,
    ) -> None:
        self.nodes = nodes
        self.edges = {node.name: edge for edge, node in enumerate(nodes)}
        self.sent = self.received = 0
        """Frames sent to other workers, and processed of theirs."""
        self._plan, self._settings, self._local, self._closing = plan, settings, local, closing
        self._subtask, self._parallelism = subtask, parallelism
        window = settings.exchange_memory // max(1, 2 * len(nodes) * len(peers))
        self._network = Network(peers, len(nodes), window, local)
        closing.callback(self._network.close)
        self._outgoing = [self._outgoing_of(edge) for edge in range(len(nodes))]
        self._routers: list[Router] = [router(node, subtask, parallelism) for node in nodes]
        self._codecs: list[ListCodec[Any]] = [node.wire for node in nodes if node.wire is not None]

    def _outgoing_of(self, edge: int) -> Outgoing:
        def send(target: int, batches: Sequence[Batch[Any]]) -> None:
            self._network.send(edge, target, self._frame(edge, batches))
            self.sent += 1

        return Outgoing(send, self._settings.batch_size, self._settings.buffer_timeout)

    # ------------------------------------------------------------ inputs

    def inputs(self, name: str) -> list[Input]:
        """One a sender. Rows of a loop come back to where they were, and forwarded ones stay there."""
        return [self._input(self.edges[name], sender) for sender in self._peers_of(name)]

    def _peers_of(self, name: str) -> Sequence[int]:
        stays = isinstance(self._plan.node(name), Feedback | Forward)
        return [self._subtask] if stays else range(self._parallelism)

    def _input(self, edge: int, sender: int) -> Input:
        node = self.nodes[edge]
        if isinstance(node, Feedback):
            return Input(edge, sender, feedback=True, queue=self.spilling(f"loop-{edge}", edge))
        if isinstance(node, Forward) and not node.typed:
            return Input(edge, sender)  # nothing of it is ever written
        held = self._settings.alignment_spill // (len(self.edges) * self._parallelism)
        if isinstance(node, PartialFold) and sender == self._subtask:
            queue = self.spilling(f"sums-{edge}", edge, LIMITS.queued_partial_rows_in_memory, _rows_in)
        elif held:
            queue = self.spilling(f"held-{edge}-{sender}", edge, self._network.window, size_of)
        else:
            return Input(edge, sender)
        return Input(edge, sender, queue=queue, may_hold=held)

    def spilling(
        self,
        file: str,
        edge: int,
        limit: int | None = None,
        weigh: Callable[[Any], int] = lambda entry: 1,
    ) -> SpillingQueue[Any]:
        """A queue for what nobody can be asked to send later. ``limit``: how much of it stays in memory."""
        limit = LIMITS.queued_entries_in_memory if limit is None else limit

        def encode(entry: Waiting) -> bytes | None:
            return None if isinstance(entry, Marker | Watermark) else self.as_now(edge, entry)

        queue = SpillingQueue[Any](self._local / file, limit, encode, weigh)
        self._closing.callback(queue.close)
        return queue

    # ------------------------------------------------------------ rows

    def sender(self, edge: int, deliver: Deliver) -> Callable[[Batch[Any]], None]:
        """What takes the output of the exchange's node."""

        def send(batch: Batch[Any]) -> None:
            for target, part in self._routers[edge](batch):
                if target == self._subtask:
                    deliver(edge, part)
                else:
                    self._outgoing[edge].add(target, part)

        return send

    def signal(self, edge: int, deliver: Callable[[int, Watermark], None]) -> Signal:
        """What takes the watermarks behind the exchange's node: they go to all who get its rows."""

        def send(watermark: Watermark) -> None:
            self._outgoing[edge].flush()
            for target in self._peers_of(self.nodes[edge].name):
                if target == self._subtask:
                    deliver(edge, watermark)
                else:
                    self._network.send_watermark(edge, target, watermark)

        return send

    def decode(self, edge: int, rows: Rows) -> Batch[Any]:
        return wire.decode(rows, self._codecs[edge], self._plan.attribution) if isinstance(rows, bytes) else rows

    def as_now(self, edge: int, rows: Rows) -> bytes:
        """See ``task.Wires``."""
        return rows if isinstance(rows, bytes) else self._frame(edge, [rows])

    def _frame(self, edge: int, batches: Sequence[Batch[Any]]) -> bytes:
        return wire.encode_at(self._plan, self.nodes[edge], batches)

    def processed(self, edge: int, sender: int, rows: Rows) -> None:
        if isinstance(rows, bytes) and sender != self._subtask:
            self.received += 1

    def credit(self, edge: int, sender: int, size: int) -> None:
        if size and sender != self._subtask:
            self._network.credit(edge, sender, size)

    def room(self, edge: int) -> bool:
        """May more rows be sent?"""
        return self._network.room(edge)

    @property
    def empty(self) -> bool:
        """Does nothing wait to be sent?"""
        return all(outgoing.empty for outgoing in self._outgoing)

    def pump(self, now: float, timeout: float) -> list[Arrival]:
        """Send what has waited long enough at ``now``, and receive; wait at most ``timeout`` seconds for something."""
        for outgoing in self._outgoing:
            outgoing.flush_old(now)
        return self._network.pump(timeout)

    # ------------------------------------------------------------ checkpoints

    def forward(self, edge: int, epoch: int, overtake: bool, aligned: bool) -> Iterable[bytes]:
        """See ``task.Wires``."""
        self._outgoing[edge].flush()
        overtake = overtake and self.nodes[edge].name not in self._plan.copying
        overtaken: list[Iterator[bytes]] = []
        for target in self._peers_of(self.nodes[edge].name):
            if target == self._subtask:
                continue
            if overtake:
                overtaken.append(self._network.overtake(edge, target, epoch))
            else:
                self._network.send_barrier(edge, target, epoch, aligned)
        return chain.from_iterable(overtaken)

    def store(self, storage: CheckpointStorage, overtaken: bool, edge: int, log: in_flight.Log) -> InFlight:
        """Upload rows under way. OSError if they cannot be stored."""
        stored = log.store(storage, self.nodes[edge].name, self._codecs[edge], overtaken)
        hit("in-flight.stored")
        return stored


def _rows_in(entry: Waiting) -> int:
    """Of rows that were on the disk, about."""
    return 0 if isinstance(entry, Marker | Watermark) else len(entry) // (_ROW if isinstance(entry, bytes) else 1)
