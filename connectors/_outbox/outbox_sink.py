"""Shared base of the sinks with an outbox: rows become files of the outbox, and its committer sends them.

Rule: settings that would break the guarantee of the outbox are refused when the sink is created or checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.connectors._outbox.committer import DeliveryClient, DeliveryOptions, OutboxCommitter
from kafka_eos.connectors._shared.value_types import StreamTypedSink
from kafka_eos.connectors.files.formats import JsonLines
from kafka_eos.connectors.files.formats.json_lines import json_value
from kafka_eos.connectors.files.sink.locations import SinkDirectory, place_of
from kafka_eos.connectors.files.sink.open_files import FileOptions, Roll
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class OutboxSink(StreamTypedSink[T]):
    """A sink for a receiver that honors keys; each kind of receiver has a subclass. ``receiver`` creates a client."""

    kind: str
    """The kind of receiver, the prefix of the scope."""

    def __init__(
        self,
        receiver: Callable[[], DeliveryClient],
        outbox: str | os.PathLike[str],
        value: type[T] | Codec[T] | None,
        batch: int,
        set_aside: int,
    ) -> None:
        if type(batch) is not int or batch < 1:
            raise ConfigError(f"batch must be at least 1 row per request (got {batch!r})")
        if type(set_aside) is not int or set_aside < 0:
            raise ConfigError(f"set_aside must be at least 0 rows (got {set_aside!r})")
        if not os.fspath(outbox):
            raise ConfigError("outbox must name a directory, where rows wait for their epoch (got '')")
        place = place_of(outbox)
        if not isinstance(place, SinkDirectory):
            raise ConfigError(f"outbox={os.fspath(outbox)!r} is not a directory")
        self._place, self._layout = SinkDirectory(place.path, private=True), JsonLines().layout(value, envelope=True)
        self._value = value
        self._receiver, self._rules = receiver, DeliveryOptions(batch, set_aside)
        self._name = receiver().name

    def _take_type(self, tp: Any) -> None:
        self._value = json_value(tp)
        self._layout = JsonLines().layout(self._value, envelope=True)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    @property
    def guarantee_reason(self) -> str:
        """Return why the guarantee is at-least-once."""
        return "requests may be repeated, under the same key: effectively once if the receiver honors the key"

    @property
    def exclusive_resource(self) -> str:
        """Return the outbox, which no other sink may use: rows in it are sent with the options of one sink."""
        return f"outbox {self._place.text}"

    @property
    def not_audited(self) -> str:
        """Return why the audit does not check this sink."""
        return "a receiver's rows cannot be read back; compare the keys that it has received"

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of this sink."""
        refused = (
            "is set aside, and later rows of its key are sent without it" if self._rules.set_aside else "stops the job"
        )
        return (
            "rows are sent once their epoch is decided, and after a kill again: all of the epoch that was not finished",
            "requests of a subtask go one after the other: an epoch lasts at least its rows / batch round trips",
            "while the receiver is unavailable, the whole job waits: no sink commits anything",
            f"a row that the receiver permanently refuses {refused}",
        )

    def described(self, *, key: str) -> Mapping[str, Json]:
        """Return the description that all such sinks share."""
        return {
            "outbox": self._place.text,
            "batch": self._rules.batch,
            "key": key,
            "refused": f"up to {self._rules.set_aside} set aside" if self._rules.set_aside else "stop",
        }

    def scope(self, ctx: JobContext) -> str:
        return f"{self.kind}:{self._name}@{self._place.text}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at a start; see ``Sink.check``. Raise Retryable if the receiver does not respond."""
        notices, receiver = self._checked(ctx), self._receiver()
        try:
            receiver.check_reachable()
        finally:
            receiver.close()
        return notices

    def _checked(self, ctx: JobContext) -> Sequence[str]:
        """Return notices about the directory. Raise ConfigError if rows cannot wait there."""
        try:
            return self._place.check(ctx)
        except ConfigError as error:
            raise ConfigError(f"the outbox cannot store rows for {self._name}: {error}") from error

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a receiver that does not respond."""
        return f"Check that {self._name} runs and accepts this job's credentials"

    def writer(self, ctx: TaskContext) -> FileWriter:
        shape = FileOptions(self._layout, "jsonl", envelope=True, partition_by=None, roll=Roll(), announced=False)
        return FileWriter(self._place.staging(), self.scope(ctx.job), shape, ctx)

    def committer(self, ctx: JobContext) -> OutboxCommitter:
        return OutboxCommitter(self._place.path, self._layout, self._receiver(), self._rules)
