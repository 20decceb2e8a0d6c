"""Bugs of the worker: at the barrier and in its transactions. See ``bugs``."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import Any

import kafka_eos.connectors.kafka.sink.kafka_sink as kafka_sink
import kafka_eos.connectors.kafka.sink.shared_transaction as staging
import kafka_eos.connectors.kafka.sink.writer as kafka_writer
import kafka_eos.runtime.worker.worker_runtime as open_plan
from kafka_eos.connectors.files import FileWriter
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool, WarmProducer
from kafka_eos.connectors.kafka.source.reader import KafkaReader
from kafka_eos.core.errors import KafkaEosError
from kafka_eos.protocol.barrier_alignment import CheckpointMode
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.state.keyed_backend import KeyedStateBackend
from kafka_eos.runtime.state.value_state import CachedValueState
from tests.planted.planting import bug, instead_of, wait

# ---------------------------------------------------------------- the barrier


@bug
def position_one_too_far() -> None:
    """Rule: a position is where to read *next*. Precedent: offsets committed as "last read" and read as "next"."""
    _shift_positions(+1)


@bug
def position_one_too_early() -> None:
    """Rule: a position is past every record that was returned. Precedent: the same off-by-one, the other way."""
    _shift_positions(-1)


def _shift_positions(by: int) -> None:
    @instead_of(KafkaReader, "positions")
    def positions(real: Any, self: Any) -> Any:
        return {split: {**at, "offset": max(0, at["offset"] + by)} for split, at in real(self).items()}


@bug
def positions_of_a_later_moment() -> None:
    """Rule: positions are those of the barrier, not of the moment when the checkpoint is written.

    Precedent: a consumer's live position (or dict) handed to the asynchronous part of a snapshot.
    """
    given: dict[str, Any] = {}

    @instead_of(KafkaReader, "positions")
    def positions(real: Any, self: Any) -> Any:
        given.update(real(self))
        return given

    real_positions = KafkaReader.positions.__wrapped__  # type: ignore[attr-defined]

    @instead_of(KafkaReader, "poll")
    def poll(real: Any, self: Any, *args: Any) -> Any:
        batch = real(self, *args)
        given.update(real_positions(self))
        return batch


@bug
def rules_are_not_aligned() -> None:
    """Rule: at a barrier every worker has processed the same of what is broadcast, so its reader waits for all.

    Precedent: broadcast state under unaligned checkpoints, where each subtask's copy was cut somewhere else.
    """

    @instead_of(open_plan, "alignment_of")
    def alignment_of(_real: Any, settings: Any, _segment: Any, _plan: Any) -> Any:
        return CheckpointMode.UNALIGNED, settings.aligned_timeout


@bug
def barriers_overtake_rules() -> None:
    """Rule: no barrier overtakes what is broadcast into a state. Precedent: as above, at the sender's end."""

    @instead_of(Exchanges, "send_barrier")
    def forward(real: Any, self: Any, edge: int, *args: Any) -> Any:
        vars(self._plan)["replicating_exchanges"] = frozenset()
        return real(self, edge, *args)


@bug
def state_cache_is_not_flushed() -> None:
    """Rule: a snapshot holds all updates before the barrier, those in the write-behind cache too.

    Precedent: changelogs and stores that were checkpointed before the cache in front of them was flushed.
    """

    @instead_of(KeyedStateBackend, "snapshot")
    def snapshot(real: Any, self: Any, epoch: Any) -> Any:
        states, self._open = self._open, {}
        try:
            return real(self, epoch)
        finally:
            self._open = states


@bug
def updates_of_one_batch_are_lost() -> None:
    """Rule: a row sees the state that the row before it left. Precedent: vectorised look-ups, read once a batch."""

    class Stale(dict[Any, Any]):
        def __init__(self, live: Any) -> None:
            super().__init__(live)
            self._live = live

        def __setitem__(self, key: Any, value: Any) -> None:
            self._live[key] = value

    @instead_of(CachedValueState, "view")
    def view(real: Any, self: Any, keys: Any) -> Any:
        return Stale(real(self, keys))


@bug
def barrier_misses_one_sink() -> None:
    """Rule: every sink is cut at the same row. Here files are cut when they are prepared, a little later.

    Precedent: sinks that roll their file in the asynchronous phase and take rows of the next epoch along.
    """

    @instead_of(FileWriter, "seal")
    def seal(real: Any, self: Any, epoch: Any) -> Any:
        def late() -> Any:
            before = _records(self)
            wait(lambda: _records(self) > before, 0.5)
            return real(self, epoch)()

        return late

    def _records(writer: Any) -> int:
        segment = writer._segment
        return 0 if segment is None else segment.records


# ---------------------------------------------------------------- the transaction


@bug
def producer_is_reused() -> None:
    """Rule: one producer instance carries one transaction: only then does (id, epoch) name it for ever.

    Precedent: commits by another process under a producer that goes on writing with the same id and epoch.
    """

    @instead_of(ProducerPool, "acquire")
    def take(real: Any, self: Any, seconds: float) -> Any:
        if not hasattr(self, "only"):
            self.only = real(self, seconds)
        return self.only

    @instead_of(ProducerPool, "release")
    def release(_real: Any, _self: Any, _used: Any) -> None:
        return None

    @instead_of(WarmProducer, "begin")
    def begin(real: Any, self: Any) -> None:
        if not hasattr(self, "begun"):
            self.begun = True
            real(self)

    writes: list[Any] = []

    @instead_of(kafka_writer.TransactionalWriter, "write")
    def write(real: Any, self: Any, batch: Any) -> None:
        real(self, batch)
        writes.append(batch)

    @instead_of(staging.EpochTransaction, "prepare")
    def prepare(real: Any, self: Any, *args: Any) -> Any:
        before = len(writes)
        wait(lambda: len(writes) > before, 0.5)
        self.warm.producer.flush(10)
        return real(self, *args)


@bug
def failed_deliveries_are_ignored() -> None:
    """Rule: an epoch is prepared only if every record was acknowledged.

    Precedent: delivery reports nobody reads, and the client's errors caught and logged around produce and flush.
    """

    @contextmanager
    def ignored(what: str) -> Any:
        with suppress(Exception):
            yield

    def until_done(call: Any, seconds: float, what: str, _check: Any) -> None:
        with suppress(KafkaEosError):
            real_until_done(call, min(seconds, 5.0), what)

    real_until_done = staging.until_done
    staging.map_errors = kafka_writer.map_errors = ignored  # type: ignore[assignment]
    staging.until_done = until_done

    @instead_of(staging.EpochTransaction, "check")
    def check(_real: Any, _self: Any) -> None:
        return None


@bug
def prepared_without_a_flush() -> None:
    """Rule: what is prepared has reached the broker. Here rows are still in the client when the epoch is committed.

    Precedent: flush() that returned while records were pending, and a checkpoint that went on.
    """
    kafka_sink._DEFAULTS = {**kafka_sink._DEFAULTS, "linger.ms": 5000}

    @instead_of(staging.EpochTransaction, "flush")
    def flush(_real: Any, _self: Any, final: bool) -> None:
        return None


@bug
def next_epoch_overtakes() -> None:
    """Rule: a row of n+1 is produced only after all rows of n were acknowledged: two producers keep no order.

    Every other epoch's rows stay in its client until the first rows of the next are at the broker.
    Precedent: pools of transactional producers that switch at the barrier without waiting.
    """
    kafka_sink._DEFAULTS = {**kafka_sink._DEFAULTS, "linger.ms": 5000}
    turns: dict[int, int] = {}
    arrived: set[int] = set()

    @instead_of(staging.SharedTransactions, "get_transaction")
    def enter(real: Any, self: Any, turn: int, topic: str) -> Any:
        before, prepared = self._open, self._prepared
        self._open, self._prepared = {t: out for t, out in before.items() if t == turn}, []
        try:
            output = real(self, turn, topic)
        finally:
            self._open, self._prepared = {**before, **self._open}, prepared
        turns[id(output)] = turn
        return output

    @instead_of(kafka_writer.TransactionalWriter, "write")
    def write(real: Any, self: Any, batch: Any) -> None:
        real(self, batch)
        if self._turn % 2 and self._staged is not None:
            self._staged.warm.producer.flush(10)
            arrived.add(self._turn)

    @instead_of(staging.EpochTransaction, "prepare")
    def prepare(real: Any, self: Any, *args: Any) -> Any:
        turn = turns[id(self)]
        if turn % 2 == 0:
            wait(lambda: turn + 1 in arrived, 0.5)
        return real(self, *args)
