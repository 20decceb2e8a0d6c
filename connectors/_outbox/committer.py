"""The committer of an outbox: it sends staged rows once their epoch is decided. Everything else is as for files.

A commit sends all rows of a file, writes the marker that the file is done, and deletes the file. If a process dies
before the marker, the next one sends the same rows again, under the same keys.
Rule: a row counts as sent when the receiver has confirmed it, and a file when all its rows are sent or set aside on
disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

import msgspec
from msgspec import Struct, field

from kafka_eos._util import failpoints
from kafka_eos.abc.committer import AtomicCommitter, CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.connectors._outbox.outbox_rows import Row, batches, row
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.file_names import FileCommittable
from kafka_eos.connectors.files.formats.format import FileLayout
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.connectors.files.sink.committer import FileCommitter
from kafka_eos.core.error_messages import shows_all_messages
from kafka_eos.core.errors import Bug, ConfigError, PartialProgress, Retryable

AT_A_STRETCH: Final = 10.0
"""Seconds of sending after which a commit reports its progress, and can be interrupted."""
MAX_CONCURRENT: Final = 16
"""Most files that are sent at the same time."""
REFUSED: Final = "refused"
"""The directory of rejected rows that were set aside, in the outbox."""


class DeliveryClient(Protocol):
    """A client that delivers rows to a receiver. Thread-safe."""

    @property
    def name(self) -> str:
        """Return the name for messages and for the scope, without secrets."""

    def check_reachable(self) -> None:
        """Raise Retryable if the receiver does not respond. The request must change nothing."""

    def deliver(self, rows: Sequence[Row]) -> str | None:
        """Deliver rows; return None if all have arrived, otherwise why the receiver permanently rejects this request.

        Raises Retryable if the request is to be retried, and ConfigError for an error that needs manual intervention.
        """

    def close(self) -> None: ...


class DeliveryOptions(Struct, frozen=True):
    """The number of rows per request, and of rejected rows that a file may have."""

    batch: int
    set_aside: int


class _DeliveryProgress(Struct):
    """The progress of this process in sending one file."""

    sent: int = 0
    refused: list[bytes] = field(default_factory=list)


class OutboxCommitter(FileCommitter, AtomicCommitter):
    """The committer of one receiver and one outbox."""

    def __init__(self, outbox: Path, layout: FileLayout, receiver: DeliveryClient, rules: DeliveryOptions) -> None:
        super().__init__(outbox)
        self._outbox = outbox
        self._layout = layout
        self._receiver = receiver
        self._rules = rules
        self._progress: dict[str, _DeliveryProgress] = {}

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Send the files of one writer in sequence, the oldest first, and those of different writers concurrently."""
        until, lanes = monotonic() + AT_A_STRETCH, _lanes(committables)
        outcomes: dict[int, CommitOutcome] = {}

        def run(lane: Sequence[int]) -> None:
            for index in lane:
                outcomes[index] = self._finished(permit, committables[index], until)

        with ThreadPoolExecutor(min(MAX_CONCURRENT, len(lanes)), thread_name_prefix="outbox") as pool:
            running = [pool.submit(run, lane) for lane in lanes]
        failures = [error for each in running if (error := each.exception()) is not None]
        for error in sorted(failures, key=_rank):
            raise error
        return [outcomes[index] for index in range(len(committables))]

    def count_set_aside(self, committables: Sequence[Committable]) -> Sequence[int]:
        """Count the lines of the files of rejected rows, which are written before a file counts as sent."""
        with map_errors(Retryable, f"look into {self._outbox / REFUSED}"):
            return [self._count_lines(FileCommittable.read(each.payload).final_name) for each in committables]

    def _count_lines(self, name: str) -> int:
        try:
            return (self._outbox / REFUSED / name).read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        self._receiver.close()

    def _finished(self, permit: CommitPermit, committable: Committable, until: float) -> CommitOutcome:
        staged_file = FileCommittable.read(committable.payload)
        if permit.epoch < staged_file.part.epoch:
            raise Bug(f"a permit for epoch {permit.epoch} cannot send {staged_file.part.staged}")
        if self.probe(committable).status is CommitStatus.PREPARED:
            with map_errors(Retryable, f"send {staged_file.part.staged}"):
                self._send(staged_file, committable.records, until)
        outcome = self.commit(permit, committable)
        # The file is no longer needed once it is sent; its marker stays.
        with map_errors(Retryable, f"remove {staged_file.final_name}"):
            (self._outbox / staged_file.final_name).unlink(missing_ok=True)
        self._progress.pop(staged_file.part.staged, None)
        return outcome

    def _send(self, staged_file: FileCommittable, records: int, until: float) -> None:
        """Send the rows of a file, from where an earlier call of this process stopped."""
        progress = self._progress.setdefault(staged_file.part.staged, _DeliveryProgress())
        before = progress.sent
        try:
            self._send_rest(staged_file, records, until, progress)
        except Retryable as error:
            if progress.sent > before:
                raise PartialProgress(str(error)) from error
            raise

    def _send_rest(self, staged_file: FileCommittable, records: int, until: float, progress: _DeliveryProgress) -> None:
        failpoints.hit("outbox.before")
        for rows in batches(islice(self._rows(staged_file), progress.sent, None), self._rules.batch):
            self._deliver(rows, progress)
            failpoints.hit("outbox.between")
            if monotonic() > until and progress.sent < records:
                raise Retryable(
                    f"{self._receiver.name}: sent {progress.sent} of {records} rows of epoch {staged_file.part.epoch}; "
                    "retrying"
                )
        if progress.refused:
            self._set_aside(staged_file, progress.refused)
        failpoints.hit("outbox.after")

    def _rows(self, staged_file: FileCommittable) -> Iterator[Row]:
        for value, provenance in self._layout.read(self._outbox / staged_file.part.staged):
            assert provenance is not None  # the writer's layout is the same
            yield row(staged_file.part, provenance, value)

    def _deliver(self, rows: Sequence[Row], progress: _DeliveryProgress) -> None:
        """Deliver rows. If a request with several rows is rejected, each row is sent alone."""
        refusal = self._asked(rows)
        if refusal is None:
            progress.sent += len(rows)
        elif len(rows) == 1:
            self._refuse(rows[0], refusal, progress)
            progress.sent += 1
        else:
            for each in rows:
                self._deliver([each], progress)

    def _refuse(self, refused: Row, answer: str, progress: _DeliveryProgress) -> None:
        if len(progress.refused) >= self._rules.set_aside:
            raise ConfigError(
                f"{self._receiver.name} refuses a row{_shown(answer)}. The row comes from "
                f"{refused.provenance}; its key is {refused.key}. Nothing is lost: all unsent rows "
                f"are in {self._outbox}. Make the receiver accept the row and restart; or pass "
                f"set_aside=… to move such rows to {self._outbox / REFUSED}"
            )
        fields = {"key": refused.key, "provenance": refused.provenance, "answer": answer}
        progress.refused.append(msgspec.json.encode({**fields, "value": msgspec.Raw(refused.value)}))

    def _asked(self, rows: Sequence[Row]) -> str | None:
        try:
            return self._receiver.deliver(rows)
        except ConfigError as error:
            raise ConfigError(
                f"{error}. Nothing is lost: unsent rows are in {self._outbox}. Repair the cause and restart"
            ) from error

    def _set_aside(self, staged_file: FileCommittable, refused: Sequence[bytes]) -> None:
        """Write rejected rows to disk before the file counts as done."""
        lines = b"".join(line + b"\n" for line in refused)
        disk.create_directory(self._outbox / REFUSED, 0o700)
        disk.write_whole(self._outbox / REFUSED / staged_file.final_name, lines, mode=0o600)


def _shown(answer: str) -> str:
    """Return the receiver's answer, which may quote the row, for a message."""
    return f": {answer}" if shows_all_messages() else " (its response is hidden; show_error_messages=true shows it)"


def _rank(error: BaseException) -> int:
    """Return the sort key of an error: fatal errors first, then retryable ones that made progress."""
    return 2 * isinstance(error, Retryable) - isinstance(error, PartialProgress)


def _lanes(committables: Sequence[Committable]) -> list[list[int]]:
    """Return groups of indices to process in sequence: an aborted epoch of a writer comes before the next one."""
    lanes: dict[tuple[str, int], list[tuple[tuple[int, int], int]]] = {}
    for index, each in enumerate(committables):
        part = FileCommittable.read(each.payload).part
        lanes.setdefault((part.operator, part.subtask), []).append(((part.epoch.epoch.n, part.number), index))
    return [[index for _, index in sorted(lane)] for lane in lanes.values()]
