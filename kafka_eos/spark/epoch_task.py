"""The function that Spark runs over Arrow batches: one task of one stage of one epoch.

Spark ships ``StageFunction``, which is plain data. The user's file is loaded here, once per term and process. Clients
that are slow to start (transactional producers) are kept as long.

Rule: an error that a retry may fix is raised, so that Spark tries again. An error that it cannot fix (a mistake in the
program, lost data), or not so soon (the environment failed), is reported to the driver at once.
"""

from __future__ import annotations

import time
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
from kafka_eos._util.gc_tuning import tune_gc_for_batches
from kafka_eos.abc.services import Resources
from kafka_eos.config.settings import Settings
from kafka_eos.core.error_messages import describe_error, explain_failure, format_traceback, show_error_messages
from kafka_eos.core.errors import (
    Bug,
    EnvironmentFailed,
    Fatal,
    InputLost,
    KafkaEosError,
    TransientConfigError,
    UserError,
)
from kafka_eos.core.failure_causes import failing_record
from kafka_eos.core.ids import AppRef, Epoch, Term
from kafka_eos.protocol.input_loss import LossResponse, respond
from kafka_eos.runtime.epoch_reports import PhaseSpan
from kafka_eos.runtime.exchange.routing import Router
from kafka_eos.runtime.program import CodeFingerprint, load_program
from kafka_eos.spark.messages import StageSpec, TaskFailure, TaskReport, decode_spec, decode_watermark, encode
from kafka_eos.spark.row_frames import FRAME, WATERMARK, ShuffleReader, ShuffleWriter
from kafka_eos.spark.stage_task import SparkTaskEnvironment, StageTask
from kafka_eos.spark.state_file_cache import LocalDisk, attempt_directory, disk_of
from kafka_eos.storage.storage_factory import open_claimed_storage


class StageFunction:
    """One stage of one epoch, as the function for mapInArrow."""

    def __init__(self, spec: bytes) -> None:
        self._spec = spec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec = decode_spec(self._spec)
        task = SparkTask.get()
        if task is None:
            raise Bug("an epoch's task runs outside Spark")
        return _run(spec, batches, task.partitionId(), task.taskAttemptId())


def _run(spec: StageSpec, batches: Iterable[pa.RecordBatch], subtask: int, attempt: int) -> Iterator[pa.RecordBatch]:
    outbox = ShuffleWriter(spec.level, subtask, spec.parallelism, attempt)
    inbox = ShuffleReader(batches, spec.parallelism)
    if spec.level == 0:
        deque(batches, maxlen=0)  # a Python worker whose input is not read to its end is not used again
    began, at = time.monotonic(), time.time()
    try:
        with closing(_TaskAttempt(spec, subtask, attempt, outbox)) as work:
            opened = time.monotonic()
            for _ in work.process(inbox):
                yield from outbox.take_full_batch()
            worked = time.monotonic()
            report = work.level.finish()
        times = {"open": opened - began, "work": worked - opened, "prepare": time.monotonic() - worked}
        here = PhaseSpan("open", at, at + opened - began), PhaseSpan("work", at + opened - began, at + worked - began)
        spans = (*here, *report.spans)
        report = msgspec.structs.replace(report, inputs=inbox.inputs, seconds=times, spans=spans)
    except (UserError, Fatal, EnvironmentFailed) as error:
        report = TaskReport(level=spec.level, subtask=subtask, attempt=attempt, failure=_failure(error))
    except (KafkaEosError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - Spark writes the message of what a task raises into logs and events
        raise RuntimeError(f"{describe_error(error)}\n{format_traceback(error)}") from None
    outbox.report(encode(report))
    if not spec.last:
        outbox.send_end()
    yield from outbox.flush()


class _TaskAttempt:
    """The working directory and the open stage of one task attempt."""

    def __init__(self, spec: StageSpec, subtask: int, attempt: int, outbox: ShuffleWriter) -> None:
        self._spec, self._outbox = spec, outbox
        process = _process(spec, attempt)
        disk = disk_of(process.disks, spec.level, subtask)
        with ExitStack() as undo:
            around = SparkTaskEnvironment(
                process.plan,
                process.settings,
                disk.storage,
                undo.enter_context(attempt_directory(disk.directory, attempt)),
                subtask,
                attempt,
                process.resources,
                process.routers,
            )
            self.level = StageTask(spec, around, outbox)
            undo.callback(self.level.close)
            self._closing = undo.pop_all()

    def process(self, inbox: ShuffleReader) -> Iterator[None]:
        """Process all rows of this stage; yield when there may be rows to send."""
        if self._spec.level == 0:
            self.level.replay()
        yield from self.level.read()
        if self._spec.level == 0:
            return
        for row in inbox:
            if row[1] == self._spec.level and row[2] == FRAME:
                self.level.push(row[5], row[6])
            elif row[1] == self._spec.level and row[2] == WATERMARK:
                self.level.on_watermark(row[5], row[3], decode_watermark(row[6]))
            else:
                self._outbox.forward(row)
            yield

    def close(self) -> None:
        self._closing.close()


# ---------------------------------------------------------------- what lasts in the process


class _WorkerState:
    """The resources that a Python worker keeps for one generation of one term."""

    def __init__(self, spec: StageSpec) -> None:
        self.key = _key(spec)
        path = Path(SparkFiles.get(Path(spec.app).name)) if spec.shipped else Path(spec.app)
        self.plan = load_program(AppRef(path, spec.pipeline)).plan()
        CodeFingerprint.compute(path, self.plan).ensure_equal(spec.code, path)
        self.settings = Settings.from_json(spec.settings)
        show_error_messages(self.settings.show_error_messages)
        logs.configure_logging(self.plan.name, "task", self.settings.log_format, self.settings.log_level)
        location = self.settings.checkpoint_location(self.plan.name)
        storage = open_claimed_storage(location, Term(spec.term), spec.claim)
        roots = self.settings.local_dirs(self.plan.name)
        self.disks = [LocalDisk(storage, root / "spark", spec.term) for root in roots]
        self.resources = Resources()
        self.routers: dict[tuple[str, int], Router] = {}
        self._epoch = -1

    def begin(self, spec: StageSpec) -> None:
        """Register a task that begins. With the first task of an epoch, release the resources of earlier epochs."""
        log_context.leave_operator()  # one that failed before it ended in the middle of a row
        if spec.epoch != self._epoch:
            self._epoch = spec.epoch
            logs.set_log_epoch(term=spec.term, epoch=spec.epoch)
            needed = {file.sha256 for handle in spec.states for file in handle.files}
            for disk in self.disks:
                disk.storage.prepare_run(needed)
            self.resources.poll_committed(Epoch(spec.finished))

    def close(self) -> None:
        self.resources.close()


_processes: list[_WorkerState] = []
"""One at most: an older one is closed when a newer term or generation comes."""


def _process(spec: StageSpec, attempt: int) -> _WorkerState:
    if not _processes or _processes[0].key != _key(spec):
        for old in _processes:
            old.close()
        _processes[:] = [_WorkerState(spec)]
        tune_gc_for_batches()
    process = _processes[0]
    process.begin(spec)
    return process


def _key(spec: StageSpec) -> Sequence[Any]:
    return spec.app, spec.pipeline, spec.settings, spec.term, spec.generation


def _failure(error: UserError | Fatal | EnvironmentFailed) -> TaskFailure:
    return TaskFailure(
        _kind(error), type(error).__name__, explain_failure(error), format_traceback(error), **failing_record(error)
    )


def _kind(error: UserError | Fatal | EnvironmentFailed) -> Literal["restart", "user", "fatal", "environment"]:
    match error:
        case EnvironmentFailed() | TransientConfigError():
            return "environment"
        case InputLost(cause=cause) if respond(cause, read_since=False) is LossResponse.RESTART_ATTEMPT:
            return "restart"
        case UserError():
            return "user"
        case _:
            return "fatal"
