"""Sends what writers have staged, once it is decided. Whatever else a committer does, that of files does.

A commit sends all rows of a file, leaves the trace that the file is done, and removes the file. A process that dies
before the trace has left nothing but that the next one sends the same rows again, under the same keys.

Rule: a row counts as sent when the receiver has said so, and a file when all of its rows do, or are set aside on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

import msgspec

from kafka_eos._util import failpoints
from kafka_eos.abc.committer import CommitPermit, Committable, Outcome, Probe, Standing
from kafka_eos.connectors._outbox.outbox_rows import Row, batches, row
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.file_names import Promise
from kafka_eos.connectors.files.formats.format import Layout
from kafka_eos.connectors.files.os_errors import mapped
from kafka_eos.connectors.files.sink.committer import FileCommitter
from kafka_eos.core.errors import Bug, ConfigError, GotFurther, Retryable

AT_A_STRETCH: Final = 10.0
"""Seconds of sending after which a commit says how far it is, and can be interrupted."""
AT_ONCE: Final = 16
"""Files that are sent at the same time."""
REFUSED: Final = "refused"
"""The directory of what is set aside, in the outbox."""


class Receiver(Protocol):
    """Where rows go. May be used from threads."""

    @property
    def name(self) -> str:
        """For people, and the scope; no secret."""

    def look(self) -> None:
        """Raises Retryable if nobody answers. Whatever the answer is, it changes nothing."""

    def deliver(self, rows: Sequence[Row]) -> str | None:
        """None if all have arrived; else why the receiver will never take what is in the request.

        Raises Retryable to be asked again, and ConfigError for what a person must repair.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """``batch``: rows a request; ``set_aside``: refused rows that a file may have."""

    batch: int
    set_aside: int


@dataclass(slots=True)
class _Progress:
    """How far this process has sent a file."""

    sent: int = 0
    refused: list[bytes] = field(default_factory=list)


class OutboxCommitter(FileCommitter):
    """The committer of one receiver and one outbox."""

    def __init__(self, outbox: Path, layout: Layout, receiver: Receiver, rules: Rules) -> None:
        super().__init__(outbox)
        self._outbox, self._layout, self._receiver, self._rules = outbox, layout, receiver, rules
        self._progress: dict[str, _Progress] = {}

    def probe_all(self, committables: Sequence[Committable]) -> Sequence[Probe]:
        return [self.probe(each) for each in committables]

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Files of one writer go one after the other, the oldest first; those of others go at the same time."""
        until, lanes = monotonic() + AT_A_STRETCH, _lanes(committables)
        outcomes: dict[int, Outcome] = {}

        def run(lane: Sequence[int]) -> None:
            for index in lane:
                outcomes[index] = self._finished(permit, committables[index], until)

        with ThreadPoolExecutor(min(AT_ONCE, len(lanes)), thread_name_prefix="outbox") as pool:
            running = [pool.submit(run, lane) for lane in lanes]
        failures = [error for each in running if (error := each.exception()) is not None]
        for error in sorted(failures, key=_rank):
            raise error
        return [outcomes[index] for index in range(len(committables))]

    def close(self) -> None:
        self._receiver.close()

    def _finished(self, permit: CommitPermit, committable: Committable, until: float) -> Outcome:
        promise = Promise.read(committable.payload)
        if permit.epoch < promise.part.epoch:
            raise Bug(f"a permit for epoch {permit.epoch} cannot send {promise.part.staged}")
        if self.probe(committable).standing is Standing.PREPARED:
            with mapped(Retryable, f"send {promise.part.staged}"):
                self._send(promise, committable.records, until)
        outcome = self.commit(permit, committable)
        with mapped(Retryable, f"remove {promise.final}"):  # what is sent is of no use; its trace stays
            (self._outbox / promise.final).unlink(missing_ok=True)
        self._progress.pop(promise.part.staged, None)
        return outcome

    def _send(self, promise: Promise, records: int, until: float) -> None:
        """All of a file; goes on where an earlier call of this process had to end."""
        progress = self._progress.setdefault(promise.part.staged, _Progress())
        before = progress.sent
        try:
            self._send_rest(promise, records, until, progress)
        except Retryable as error:
            if progress.sent > before:
                raise GotFurther(str(error)) from error
            raise

    def _send_rest(self, promise: Promise, records: int, until: float, progress: _Progress) -> None:
        failpoints.hit("outbox.before")
        for rows in batches(islice(self._rows(promise), progress.sent, None), self._rules.batch):
            self._deliver(rows, progress)
            failpoints.hit("outbox.between")
            if monotonic() > until and progress.sent < records:
                raise Retryable(
                    f"{progress.sent} of {records} rows of epoch {promise.part.epoch} are sent to {self._receiver.name}"
                )
        if progress.refused:
            self._set_aside(promise, progress.refused)
        failpoints.hit("outbox.after")

    def _rows(self, promise: Promise) -> Iterator[Row]:
        for value, provenance in self._layout.read(self._outbox / promise.part.staged):
            assert provenance is not None  # the writer's layout is the same
            yield row(promise.part, provenance, value)

    def _deliver(self, rows: Sequence[Row], progress: _Progress) -> None:
        """Rows that arrive, or are refused. Of several that are refused in one request each goes alone."""
        refusal = self._asked(rows)
        if refusal is None:
            progress.sent += len(rows)
        elif len(rows) == 1:
            self._refuse(rows[0], refusal, progress)
            progress.sent += 1
        else:
            for each in rows:
                self._deliver([each], progress)

    def _refuse(self, refused: Row, answer: str, progress: _Progress) -> None:
        if len(progress.refused) >= self._rules.set_aside:
            raise ConfigError(
                f"{self._receiver.name} refuses a row: {answer}. It comes from {refused.provenance}, and its key is "
                f"{refused.key}. Nothing is lost: all rows that are not sent are in {self._outbox}. Let the receiver "
                f"take it and start again; or let such rows be set aside in {self._outbox / REFUSED}: set_aside=…"
            )
        said = {"key": refused.key, "provenance": refused.provenance, "answer": answer}
        progress.refused.append(msgspec.json.encode({**said, "value": msgspec.Raw(refused.value)}))

    def _asked(self, rows: Sequence[Row]) -> str | None:
        try:
            return self._receiver.deliver(rows)
        except ConfigError as error:
            raise ConfigError(
                f"{error}. Nothing is lost: what is not sent is in {self._outbox}. Repair it and start again"
            ) from error

    def _set_aside(self, promise: Promise, refused: Sequence[bytes]) -> None:
        """On disk, before the file counts as done."""
        disk.create_directory(self._outbox / REFUSED)
        disk.write_whole(self._outbox / REFUSED / promise.final, b"".join(line + b"\n" for line in refused))


def _rank(error: BaseException) -> int:
    """What ends the job comes first; of what is asked again, what got further."""
    return 2 * isinstance(error, Retryable) - isinstance(error, GotFurther)


def _lanes(committables: Sequence[Committable]) -> list[list[int]]:
    """Indices of what must go one after the other, in that order: an epoch that was given up comes before the next."""
    lanes: dict[tuple[str, int], list[tuple[tuple[int, int], int]]] = {}
    for index, each in enumerate(committables):
        part = Promise.read(each.payload).part
        lanes.setdefault((part.operator, part.subtask), []).append(((part.epoch.epoch.n, part.number), index))
    return [[index for _, index in sorted(lane)] for lane in lanes.values()]
