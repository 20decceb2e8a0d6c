"""What Spark runs: one task of one level of one epoch, as a function over Arrow batches.

Spark ships ``EpochTask``, which is plain data; the user's file is loaded here, once a term and process. Clients that
take long to start (transactional producers) last as long.

Rule: what a retry may change is raised, so that Spark tries again; what it cannot (the user's mistake, lost data), or
not so soon (the environment failed), goes to the driver as a report, at once.
"""

from __future__ import annotations

import socket
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
from pyspark import SparkFiles
from pyspark import TaskContext as SparkTask

from kafka_eos._util import log_context
from kafka_eos._util import logging_setup as logs
from kafka_eos._util.gc_tuning import spare_the_collector
from kafka_eos.abc.services import Resources
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import Bug, ConfigError, EnvironmentFailed, Fatal, LoginRefused, UserError
from kafka_eos.core.failure_causes import record_of
from kafka_eos.core.ids import AppRef, Epoch, Term
from kafka_eos.runtime.epoch_reports import Span
from kafka_eos.runtime.exchange.routing import Router
from kafka_eos.runtime.program import Code, load
from kafka_eos.spark.messages import Failure, Report, Spec, decode_spec, decode_watermark, encode
from kafka_eos.spark.row_frames import FRAME, WATERMARK, Inbox, Outbox
from kafka_eos.spark.stage_task import OpenLevel, Surroundings
from kafka_eos.spark.state_file_cache import LocalDisk, attempt_directory, disk_of
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.storage_factory import find_storage


class EpochTask:
    """One level of one epoch, for ``mapInArrow``."""

    def __init__(self, spec: bytes) -> None:
        self._spec = spec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec = decode_spec(self._spec)
        task = SparkTask.get()
        if task is None:
            raise Bug("an epoch's task runs outside Spark")
        return _run(spec, batches, task.partitionId(), task.taskAttemptId())


def _run(spec: Spec, batches: Iterable[pa.RecordBatch], subtask: int, attempt: int) -> Iterator[pa.RecordBatch]:
    outbox = Outbox(spec.level, subtask, spec.parallelism, attempt)
    inbox = Inbox(batches, spec.parallelism)
    if spec.level == 0:
        deque(batches, maxlen=0)  # a Python worker whose input is not read to its end is not used again
    began, at = time.monotonic(), time.time()
    try:
        with closing(_Work(spec, subtask, attempt, outbox)) as work:
            opened = time.monotonic()
            for _ in work.process(inbox):
                yield from outbox.full()
            worked = time.monotonic()
            report = work.level.finish()
        times = {"open": opened - began, "work": worked - opened, "prepare": time.monotonic() - worked}
        here = Span("open", at, at + opened - began), Span("work", at + opened - began, at + worked - began)
        spans = (*here, *report.spans)
        report = msgspec.structs.replace(report, inputs=inbox.inputs, seconds=times, spans=spans)
    except (UserError, Fatal, EnvironmentFailed) as error:
        report = Report(level=spec.level, subtask=subtask, attempt=attempt, failure=_failure(error))
    outbox.report(encode(report))
    if not spec.last:
        outbox.ends()
    yield from outbox.rest()


class _Work:
    """One attempt's directory and level."""

    def __init__(self, spec: Spec, subtask: int, attempt: int, outbox: Outbox) -> None:
        self._spec, self._outbox = spec, outbox
        process = _process(spec, attempt)
        disk = disk_of(process.disks, spec.level, subtask)
        with ExitStack() as undo:
            around = Surroundings(
                process.plan,
                process.settings,
                disk.storage,
                undo.enter_context(attempt_directory(disk.directory, attempt)),
                subtask,
                attempt,
                process.resources,
                process.routers,
            )
            self.level = OpenLevel(spec, around, outbox)
            undo.callback(self.level.close)
            self._closing = undo.pop_all()

    def process(self, inbox: Inbox) -> Iterator[None]:
        """All rows of this level; yields when there may be something to send."""
        if self._spec.level == 0:
            self.level.replay()
        yield from self.level.read()
        if self._spec.level == 0:
            return
        for row in inbox:
            if row[1] == self._spec.level and row[2] == FRAME:
                self.level.push(row[5], row[6])
            elif row[1] == self._spec.level and row[2] == WATERMARK:
                self.level.hear(row[5], row[3], decode_watermark(row[6]))
            else:
                self._outbox.pass_on(row)
            yield

    def close(self) -> None:
        self._closing.close()


# ---------------------------------------------------------------- what lasts in the process


class _Process:
    """What this process keeps for one generation of one term."""

    def __init__(self, spec: Spec) -> None:
        self.key = _key(spec)
        path = Path(SparkFiles.get(Path(spec.app).name)) if spec.shipped else Path(spec.app)
        self.plan = load(AppRef(path, spec.pipeline)).plan()
        Code.of(path, self.plan).expect_as(spec.code, path)
        self.settings = Settings.from_json(spec.settings)
        logs.begin(self.plan.name, "task", self.settings.log_format, self.settings.log_level)
        storage = drivers_storage(self.settings.checkpoints_of(self.plan.name), spec)
        roots = self.settings.local_dirs(self.plan.name)
        self.disks = [LocalDisk(storage, root / "spark", spec.term) for root in roots]
        self.resources = Resources()
        self.routers: dict[tuple[str, int], Router] = {}
        self._epoch = -1

    def begin(self, spec: Spec) -> None:
        """A task begins; with the first one of an epoch, let go of what earlier ones needed."""
        log_context.leave()  # one that failed before it ended in the middle of a row
        if spec.epoch != self._epoch:
            self._epoch = spec.epoch
            logs.now(term=spec.term, epoch=spec.epoch)
            needed = {file.sha256 for handle in spec.states for file in handle.files}
            for disk in self.disks:
                disk.storage.tidy(needed)
            self.resources.committed(Epoch(spec.finished))

    def close(self) -> None:
        self.resources.close()


def drivers_storage(where: Path | str, spec: Spec) -> JobStorage:
    """The job's storage as this machine sees it. ConfigError if the driver's is another; makes no directory then."""
    storage = find_storage(where)
    if storage is None or _claim(storage, spec.term) != spec.claim:
        raise ConfigError(
            f"checkpoint_dir is not the same place on every machine: on {socket.gethostname()}, {where} does not hold "
            f"the claim of term {spec.term}, which the driver wrote. State stored there would be lost to all others. "
            "Set checkpoint_dir to an object store, or to a file system that driver and executors share under one name."
        )
    return storage


def _claim(storage: JobStorage, term: int) -> bytes | None:
    try:
        return storage.read(paths.claim_name(Term(term)))
    except FileNotFoundError:
        return None


_processes: list[_Process] = []
"""One at most: an older one is closed when a newer term or generation comes."""


def _process(spec: Spec, attempt: int) -> _Process:
    if not _processes or _processes[0].key != _key(spec):
        for old in _processes:
            old.close()
        _processes[:] = [_Process(spec)]
        spare_the_collector()
    process = _processes[0]
    process.begin(spec)
    return process


def _key(spec: Spec) -> Sequence[Any]:
    return spec.app, spec.pipeline, spec.settings, spec.term, spec.generation


def _failure(error: UserError | Fatal | EnvironmentFailed) -> Failure:
    details = "".join(traceback.format_exception(error))
    return Failure(_kind(error), type(error).__name__, str(error) or type(error).__name__, details, **record_of(error))


def _kind(error: UserError | Fatal | EnvironmentFailed) -> Literal["user", "fatal", "environment"]:
    match error:
        case EnvironmentFailed() | LoginRefused():
            return "environment"
        case UserError():
            return "user"
        case _:
            return "fatal"
