"""The exchanges of a plan in one worker: their inputs, outputs and network frames.

Exchanges have numbers, the same in every worker: their *edges*. Rows of a worker for itself are not encoded and cross
no network: ``deliver`` receives them.

Rule: a frame contains everything about its rows. Rows that wait for long become a frame on the local disk; rows that
are produced and consumed in this worker stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.codec import ListCodec
from kafka_eos.abc.state import InFlightRows
from kafka_eos.abc.storage import FileBatch
from kafka_eos.config.settings import Settings
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import FeedbackNode, ForwardNode, Node, PartialFoldNode, Plan
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.exchange.input_queues import Barrier, BatchOrFrame, InputChannel, QueueEntry
from kafka_eos.runtime.exchange.network import Arrival, Network
from kafka_eos.runtime.exchange.output_buffers import OutputBuffer
from kafka_eos.runtime.exchange.routing import Router, make_router
from kafka_eos.runtime.exchange.spilling_queue import SpillingQueue, size_of
from kafka_eos.runtime.operators.event_time import WatermarkOutput
from kafka_eos.runtime.operators.exchanged_rows import EncodedRows, encode_rows, expect_encodable
from kafka_eos.runtime.transport.data_socket import DataSocket

_ROW = 64
"""Approximate size of a row on disk, in bytes."""
Deliver = Callable[[int, Batch[Any]], None]
"""Receives rows of this worker for itself, with their edge."""


class Exchanges:
    """The exchanges of one worker.

    ``closing`` releases files and connections on exit; ``local`` is the file directory.
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        nodes: Sequence[Node],
        peers: Mapping[int, DataSocket],
        subtask: int,
        parallelism: int,
        local: Path,
        closing: ExitStack,
    ) -> None:
        self.nodes = nodes
        self.edges = {node.name: edge for edge, node in enumerate(nodes)}
        self.frames_sent = self.frames_processed = 0
        """Frames sent to other workers, and processed of theirs."""
        self._plan = plan
        self._settings = settings
        self._local = local
        self._closing = closing
        self._subtask, self._parallelism = subtask, parallelism
        window = settings.exchange_memory // max(1, 2 * len(nodes) * len(peers))
        self._network = Network(peers, len(nodes), window, local)
        closing.callback(self._network.close)
        self._outgoing = [self._outgoing_of(edge) for edge in range(len(nodes))]
        self._routers: list[Router] = [make_router(node, subtask, parallelism) for node in nodes]
        self._codecs: list[ListCodec[Any]] = [node.exchange_codec for node in nodes if node.exchange_codec is not None]

    def _outgoing_of(self, edge: int) -> OutputBuffer:
        def send(target: int, rows: Sequence[EncodedRows]) -> None:
            self._network.send(edge, target, wire.build_frame(self._plan, self.nodes[edge], rows))
            self.frames_sent += 1

        return OutputBuffer(send, self._settings.batch_size, self._settings.buffer_timeout)

    # ------------------------------------------------------------ inputs

    def inputs(self, name: str) -> list[InputChannel]:
        """Return one input per sender. Rows of a loop return to their subtask, and forwarded rows stay in theirs."""
        return [self._input(self.edges[name], sender) for sender in self._peers_of(name)]

    def _peers_of(self, name: str) -> Sequence[int]:
        stays = isinstance(self._plan.node(name), FeedbackNode | ForwardNode)
        return [self._subtask] if stays else range(self._parallelism)

    def _input(self, edge: int, sender: int) -> InputChannel:
        node = self.nodes[edge]
        if isinstance(node, FeedbackNode):
            return InputChannel(edge, sender, feedback=True, queue=self.spilling(f"loop-{edge}", edge))
        if isinstance(node, ForwardNode) and not node.typed:
            return InputChannel(edge, sender)  # it is never encoded
        held = self._settings.alignment_spill // (len(self.edges) * self._parallelism)
        if isinstance(node, PartialFoldNode) and sender == self._subtask:
            queue = self.spilling(f"sums-{edge}", edge, LIMITS.queued_partial_rows_in_memory, _rows_in)
        elif held:
            queue = self.spilling(f"held-{edge}-{sender}", edge, self._network.window, size_of)
        else:
            return InputChannel(edge, sender)
        return InputChannel(edge, sender, queue=queue, spill_limit=held)

    def spilling(
        self,
        file: str,
        edge: int,
        limit: int | None = None,
        weigh: Callable[[Any], int] = lambda entry: 1,
    ) -> SpillingQueue[Any]:
        """Create a queue for rows that no sender can be asked to keep. ``limit``: the part that stays in memory."""
        limit = LIMITS.queued_entries_in_memory if limit is None else limit

        def encode(entry: QueueEntry) -> bytes | None:
            return None if isinstance(entry, Barrier | Watermark) else self.freeze(edge, entry)

        queue = SpillingQueue[Any](self._local / file, limit, encode, weigh)
        self._closing.callback(queue.close)
        return queue

    # ------------------------------------------------------------ rows

    def make_row_output(self, edge: int, deliver: Deliver) -> Callable[[Batch[Any]], None]:
        """Return the callable that routes the exchange node's output.

        Rows for this worker are checked too: whether the exchange accepts a row must not depend on the number of
        workers. The callable raises UnencodableRows before any row is sent.
        """
        node = self.nodes[edge]

        def send(batch: Batch[Any]) -> None:
            local, remote = list[Batch[Any]](), list[tuple[int, EncodedRows]]()
            for target, part in self._routers[edge](batch):
                if target == self._subtask:
                    expect_encodable(node, part)
                    local.append(part)
                else:
                    remote.append((target, encode_rows(node, part)))
            for part in local:
                deliver(edge, part)
            for target, encoded in remote:
                self._outgoing[edge].add(target, encoded)

        return send

    def make_watermark_output(self, edge: int, deliver: Callable[[int, Watermark], None]) -> WatermarkOutput:
        """Return the callable that sends watermarks to all receivers of the exchange."""

        def send(watermark: Watermark) -> None:
            self._outgoing[edge].flush()
            for target in self._peers_of(self.nodes[edge].name):
                if target == self._subtask:
                    deliver(edge, watermark)
                else:
                    self._network.send_watermark(edge, target, watermark)

        return send

    def decode(self, edge: int, rows: BatchOrFrame) -> Batch[Any]:
        return wire.decode(rows, self._codecs[edge], self._plan.attribution) if isinstance(rows, bytes) else rows

    def freeze(self, edge: int, rows: BatchOrFrame) -> bytes:
        """Encode rows for a log now, because user code may modify their values later."""
        return rows if isinstance(rows, bytes) else wire.encode_at(self._plan, self.nodes[edge], [rows])

    def processed(self, edge: int, sender: int, rows: BatchOrFrame) -> None:
        """Count the rows as processed."""
        if isinstance(rows, bytes) and sender != self._subtask:
            self.frames_processed += 1

    def credit(self, edge: int, sender: int, size: int) -> None:
        """Let the sender send so many more bytes."""
        if size and sender != self._subtask:
            self._network.credit(edge, sender, size)

    def has_room(self, edge: int) -> bool:
        """Return whether more rows can be sent on this exchange without back-pressure."""
        return self._network.room(edge)

    def find_lost_peer(self, before: float) -> int | None:
        """Return a worker whose connection ended before this time, by the monotonic clock, if there is one."""
        return self._network.find_lost_peer(before)

    @property
    def empty(self) -> bool:
        """Return whether no row waits to be sent."""
        return all(outgoing.empty for outgoing in self._outgoing)

    def pump(self, now: float, timeout: float) -> list[Arrival]:
        """Send rows whose buffer timeout has passed at ``now``, and receive; wait at most ``timeout`` seconds for an
        arrival."""
        for outgoing in self._outgoing:
            outgoing.flush_old(now)
        return self._network.pump(timeout)

    # ------------------------------------------------------------ checkpoints

    def send_barrier(self, edge: int, epoch: int, overtake: bool, aligned: bool) -> Iterable[bytes]:
        """Send the barrier to all other subtasks; return the rows that it overtakes, which must be read at once."""
        self._outgoing[edge].flush()
        overtake = overtake and self.nodes[edge].name not in self._plan.replicating_exchanges
        overtaken: list[Iterator[bytes]] = []
        for target in self._peers_of(self.nodes[edge].name):
            if target == self._subtask:
                continue
            if overtake:
                overtaken.append(self._network.overtake(edge, target, epoch))
            else:
                self._network.send_barrier(edge, target, epoch, aligned)
        return chain.from_iterable(overtaken)

    def add_in_flight(
        self, batch: FileBatch, overtaken: bool, edge: int, log: in_flight.InFlightLog
    ) -> Callable[[], InFlightRows]:
        """Add in-flight rows to a batch. The returned function is called when the batch is stored.

        Raises OSError if they cannot be stored.
        """
        get_rows = log.add_to(batch, self.nodes[edge].name, self._codecs[edge], overtaken)

        def get_stored() -> InFlightRows:
            hit("in-flight.stored")
            return get_rows()

        return get_stored


def _rows_in(entry: QueueEntry) -> int:
    """Return the approximate number of rows of an entry from disk."""
    return 0 if isinstance(entry, Barrier | Watermark) else len(entry) // (_ROW if isinstance(entry, bytes) else 1)
