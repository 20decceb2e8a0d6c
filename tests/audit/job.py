"""A job that was never run, for the audit to judge: an app file, its input, its output and its job directory.

What an engine would have left behind is made here record by record, so that a test can leave something out, do it
twice or do it wrong. Outputs carry real provenance and are written in real transactions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import Producer
from msgspec import structs

from kafka_eos import Pipeline
from kafka_eos.abc.committer import Committable, Spread
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.audit import Verdict, audit
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.job_history import History
from kafka_eos.core.ids import AppRef, Epoch, EpochId, SplitId, Term
from kafka_eos.core.provenance import Provenance
from kafka_eos.runtime.program import load_program
from kafka_eos.storage import job_records as records
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import IdentityRecord, Manifest, Receipt, TermBase, TermClaim
from kafka_eos.storage.job_storage import JobStorage, LocalStorage
from kafka_eos.storage.storage_factory import open_storage
from tests.audit.output_records import FED_AT, OWN, Out
from tests.audit.provenance_files import rounds, write_beside
from tests.producers import in_order, in_transactions
from tests.waiting import PATIENCE

ONCE = """
class Once(ProcessFunction):
    def open(self, ctx):
        self.seen = ctx.value_state("seen", bool, ttl=Ttl(3600, clock="event"))

    def process(self, key, word):
        if not self.seen.get():
            self.seen.put(True)
            yield word
"""
"""Source text of a process function that lets each word pass once, as long as its state lives."""
IDENTITY = "0123456789ab"
"""Of a job that is made by hand."""
Input = tuple[int, str | None, bytes]
"""Partition, key, value."""
Ends = dict[str, dict[SplitId, int]]
"""Next offset by source and split."""


def placed(key: str) -> int:
    """Where a record of this key belongs in a topic of two partitions, by the partitioner ``consistent_random``."""
    return zlib.crc32(key.encode()) % 2


def out(
    at: tuple[int, int],
    key: str | None,
    value: bytes,
    *,
    update: int | None = None,
    topic: str,
    ordinal: int | str = 0,
    lane: int = 0,
    epoch: tuple[int, int] = (1, 1),
    source: str = "orders",
    target: int = 0,
) -> Out:
    """An output of the input record at (partition, offset), written by ``epoch`` = (term, epoch)."""
    term, number = epoch
    where = Provenance(OWN, Term(term), Epoch(number), source, topic, *at, lane, str(ordinal), update)
    return Out(key, value, str(where), target)


def refused_at(topic: str, offset: int, partition: int = 0) -> tuple[tuple[str, bytes], ...]:
    """The headers of a dead letter of an input record."""
    place = {"topic": topic, "partition": partition, "offset": offset, "timestamp": FED_AT}
    told = {**place, **dict.fromkeys(("operator", "error", "message"), "whatever")}
    return tuple((f"dead_letter.{name}", str(value).encode()) for name, value in told.items())


@dataclass
class Job:
    """Where everything is. Build one with the ``job`` fixture."""

    bootstrap: str
    directory: Path
    app: Path
    name: str
    topics: dict[str, str] = field(default_factory=dict)
    pipeline: Pipeline | None = None
    kept: dict[EpochId, list[FileRef]] = field(default_factory=dict)
    """Files of provenance, by the epoch that wrote what they tell of."""
    spread: dict[EpochId, Mapping[str, Spread]] = field(default_factory=dict)
    """How outputs were divided, by epoch and sink."""
    checkpoints: str = ""
    """The address of its checkpoints, if they are in an object store."""

    @property
    def settings(self) -> Settings:
        return Settings.resolve(code={"bootstrap_servers": self.bootstrap, "checkpoint_dir": self.checkpoint_dir})

    @property
    def checkpoint_dir(self) -> str | Path:
        return self.checkpoints or self.directory / "checkpoints"

    @property
    def failpoint_log(self) -> Path:
        """What failpoints have done so far."""
        return self.directory / "failpoints.log"

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.settings.job_dir(self.name))

    @property
    def store(self) -> JobStorage:
        """As ``storage``, wherever that is."""
        return open_storage(self.settings.checkpoint_location(self.name))

    def run(self, *options: str, workers: int = 2, failpoints: str = "") -> None:
        """Let the job process what is there. It is started again as often as a failpoint kills it."""
        command = [sys.executable, "-m", "kafka_eos", "run", str(self.app), "--until-caught-up", *options]
        given = {
            **os.environ,
            "KAFKA_EOS_BOOTSTRAP_SERVERS": self.bootstrap,
            "KAFKA_EOS_CHECKPOINT_DIR": str(self.checkpoint_dir),
            "KAFKA_EOS_PARALLELISM": str(workers),
            "KAFKA_EOS_FAILPOINTS": failpoints,
            "KAFKA_EOS_FAILPOINT_LOG": str(self.failpoint_log),
        }
        while True:
            done = subprocess.run(
                command, env=given, cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            if done.returncode != -signal.SIGKILL:
                break
        assert done.returncode == 0, done.stdout + done.stderr

    def ask(self, *words: str) -> tuple[int, str]:
        """What the command ``kafka-eos`` says about this job, and its exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "kafka_eos", *words, "-b", self.bootstrap],
            cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE * 4, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    # ------------------------------------------------------------ topics

    def feed(self, topic: str, inputs: Iterable[Input]) -> None:
        """Write input records of the same time; offsets of a partition begin at 0."""
        producer = in_order(self.bootstrap, {"queue.buffering.max.messages": 1_000_000})
        for partition, key, value in inputs:
            producer.produce(topic, value, key, partition, timestamp=FED_AT)
        assert producer.flush(PATIENCE) == 0

    def write(self, topic: str, outs: Iterable[Out], *, commit: bool = True) -> None:
        """Write outputs in one transaction, and end it."""
        self.write_all({topic: outs}, commit=commit)

    def write_all(self, outs: Mapping[str, Iterable[Out]], *, commit: bool = True) -> None:
        """As ``write``, for several topics in the same transaction."""
        settings = {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        producer = in_transactions(self.bootstrap, f"{self.name}.hand", settings)
        self.begin(producer, outs)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)

    def write_beside(self, visible: Mapping[str, Iterable[Out]], sinks: Mapping[str, str], *, commit: bool) -> None:
        """As ``write_all``, with provenance in files beside the data, by the sink of each topic; see ``beside``."""
        for attempt, told in rounds(visible):
            ref = write_beside(self.bootstrap, self.storage, attempt, told, sinks, commit=commit)
            if ref is not None and attempt is not None:
                self.kept.setdefault(attempt, []).append(ref)

    def begin(self, producer: Producer, outs: Mapping[str, Iterable[Out]]) -> None:
        """Write outputs in a transaction that stays open."""
        producer.begin_transaction()
        for topic, rows in outs.items():
            for each in rows:
                producer.produce(
                    topic, each.value, each.key, each.partition, headers=each.headers_of(self.name),
                    timestamp=each.timestamp,
                )  # fmt: skip
        assert producer.flush(PATIENCE) == 0

    # ------------------------------------------------------------ job directory

    def commits(
        self,
        *epochs: EpochId,
        positions: Ends,
        counts: Mapping[EpochId, int | Mapping[str, int]],
        history: bool = True,
        earlier: Mapping[EpochId, Ends] = MappingProxyType({}),
        states: tuple[StateHandle, ...] = (),
    ) -> None:
        """The durable trace of committed epochs: terms, manifests, receipts, and unless ``history`` is false the ledger
        and the history. They end at ``positions``, but for those of ``earlier`` and for epoch 0, which ends at 0.

        ``counts``: outputs by sink, or in older commits their sum. ``states``: of each of them.
        """
        storage = self._own()
        ledger = EpochLedger(storage, self.name, print)
        previous: EpochId | None = None
        for epoch in epochs:
            if previous is None or previous.term != epoch.term:
                records.publish(storage, TermClaim(job=self.name, term=epoch.term.n, host="test", pid=1, at=0))
                base = None if previous is None else (previous.epoch.n, previous.term.n)
                records.publish(storage, TermBase(job=self.name, term=epoch.term.n, resumed=base, reason="test", at=0))
            ends = earlier.get(epoch, positions) if epoch.epoch.n else _zero(positions)
            manifest = structs.replace(self._manifest(epoch, ends, counts.get(epoch, 0)), states=states)
            outputs = sum(committable.records for committable in manifest.committables)
            records.publish(storage, manifest)
            records.publish(
                storage, Receipt(job=self.name, epoch=epoch.epoch.n, term=epoch.term.n, created_at=0, outcomes=())
            )
            if history:
                ledger.write_epoch(manifest)
                History(storage, print).append_event(
                    "committed", epoch=epoch.epoch.n, term=epoch.term.n, records={"kafka": outputs}
                )
            previous = epoch

    def decide(self, epoch: EpochId, positions: Ends, outputs: int | Mapping[str, int] = 0) -> None:
        """Publish a manifest and nothing else."""
        records.publish(self._own(), self._manifest(epoch, positions, outputs))

    def _own(self) -> LocalStorage:
        """Its directory, which says whose it is."""
        storage = self.storage
        with suppress(FileExistsError):
            records.publish(storage, IdentityRecord(job=self.name, identity=IDENTITY, at=0))
        return storage

    def _manifest(self, epoch: EpochId, positions: Ends, outputs: int | Mapping[str, int] = 0) -> Manifest:
        by_sink = {} if isinstance(outputs, int) else outputs
        records = outputs if isinstance(outputs, int) else sum(outputs.values())
        return Manifest(
            job=self.name, epoch=epoch.epoch.n, term=epoch.term.n, created_at=0, plan="", max_key_groups=128,
            parallelism=1, states=(), identity=IDENTITY,
            committables=(Committable("kafka", {}, records, by_sink, self.spread.get(epoch, {})),
                          *(Committable("kafka", {}, 0, {}, {}, ref) for ref in self.kept.get(epoch, ()))),
            sources={s: {split: {"offset": at} for split, at in splits.items()} for s, splits in positions.items()},
        )  # fmt: skip

    # ------------------------------------------------------------ audit

    def audit(self, spark: object, **options: object) -> Verdict:
        ref = AppRef(self.app, self.name)
        self.pipeline = self.pipeline or load_program(ref)
        return audit(self.pipeline, self.settings, app=ref, spark=spark, **options)  # type: ignore[arg-type]


def _zero(positions: Ends) -> Ends:
    return {source: dict.fromkeys(splits, 0) for source, splits in positions.items()}


def epoch(term: int, number: int) -> EpochId:
    return EpochId(Epoch(number), Term(term))
