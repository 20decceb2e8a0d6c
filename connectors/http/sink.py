"""``HttpSink``: rows for a receiver that understands idempotency keys.

Rule: nothing is sent before its epoch is decided, and nothing is forgotten before the receiver has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kafka_eos.connectors.files.formats import JsonLines
from kafka_eos.connectors.files.open_files import Roll, Shape
from kafka_eos.connectors.files.places import Directory, place_of
from kafka_eos.connectors.files.writer import FileWriter
from kafka_eos.connectors.http.client import Receiver
from kafka_eos.connectors.http.committer import HttpCommitter, Rules
from kafka_eos.errors import ConfigError
from kafka_eos.interfaces import Codec, Guarantee, JobContext, Json, TaskContext

T = TypeVar("T")


class HttpSink(Generic[T]):
    """Sends a stream of ``T`` to ``url``, each value under a key that is its own, once or more often.

    ``url``        the receiver: a person's webhook, a service
    ``outbox``     a directory where rows wait for their epoch, on a disk that lasts and that all processes of the job
                   have, the supervisor too. One for each sink
    ``value``      the values' type; default any value that JSON can hold
    ``method``     of the requests
    ``headers``    of each request, a login for example. They are neither stored nor shown
    ``batch``      rows in one request. With more than one the body is an array of ``{"id": key, "value": …}``,
                   without it is the value itself
    ``timeout``    seconds that an answer may take
    ``set_aside``  so many rows of a subtask and epoch that the receiver refuses for good are written to
                   ``<outbox>/refused``, and the job goes on without them; one more stops it
    ``arrived``    statuses besides 2xx that say that the receiver has it: (409,) if it answers so to a key that it
                   knows. Otherwise 409 means that it is at work on the key, and is asked again
    ``client``     makes the ``httpx2.Client`` that sends, for certificates, proxies or logins of its own

    Each request has the header ``Idempotency-Key``: a receiver that does nothing under a key that it knows gets each
    value effectively once.
    """

    def __init__(
        self,
        url: str,
        *,
        outbox: str | os.PathLike[str],
        value: type[T] | Codec[T] | None = None,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        batch: int = 1,
        timeout: float = 30.0,
        set_aside: int = 0,
        arrived: Sequence[int] = (),
        client: Callable[[], Any] | None = None,
    ) -> None:
        if method not in ("POST", "PUT", "PATCH"):
            raise ConfigError(f"method={method!r}: HttpSink sends POST, PUT or PATCH")
        if type(batch) is not int or batch < 1:
            raise ConfigError(f"batch= is how many rows are in a request: 1 or more, not {batch!r}")
        if type(set_aside) is not int or set_aside < 0:
            raise ConfigError(f"set_aside= is how many refused rows are set aside: 0 or more, not {set_aside!r}")
        if type(timeout) not in (int, float) or not 0 < timeout < float("inf"):
            raise ConfigError(f"timeout= is how many seconds an answer may take: some, not {timeout!r}")
        place = place_of(outbox)
        if not isinstance(place, Directory):
            raise ConfigError(f"outbox={os.fspath(outbox)!r}: rows wait in a directory, which this is not")
        self._place, self._layout = place, JsonLines().layout(value, envelope=True)
        self._rules = Rules(batch, batch > 1, set_aside, frozenset(arrived))
        self._given = url, method, dict(headers or {}), timeout, client
        self._name = self._receiver().name

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    @property
    def because(self) -> str:
        """Why it is no more than that."""
        return "requests may be repeated, under the same key: effectively once if the receiver honours the key"

    @property
    def unshared(self) -> str:
        """Rows in an outbox are sent by the rules of the sink that finds them."""
        return f"outbox {self._place.text}"

    @property
    def not_audited(self) -> str:
        """For the audit: why it does not look."""
        return "what a receiver has is not to be read; compare the keys that it has seen"

    def price(self) -> Sequence[str]:
        """See ``interfaces.Priced``."""
        refused = "is set aside, and later rows of its key go without it" if self._rules.set_aside else "stops the job"
        return (
            "rows are sent once their epoch is decided, and after a kill again: all of the epoch that was not finished",
            "requests of a subtask go one after the other: an epoch lasts at least its rows / batch round trips",
            "while the receiver is away the whole job waits: nothing new is committed in any sink",
            f"a row that the receiver refuses for good {refused}",
        )

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "http",
            "url": self._name,
            "method": self._given[1],
            "outbox": self._place.text,
            "batch": self._rules.batch,
            "key": "header Idempotency-Key",
            "refused": f"up to {self._rules.set_aside} set aside" if self._rules.set_aside else "stop",
        }

    def __repr__(self) -> str:
        return f"HttpSink({self._name!r})"

    def scope(self, ctx: JobContext) -> str:
        return f"http:{self._name}@{self._place.text}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """At start; see ``interfaces.Sink``. Raises Retryable if nobody answers at the address."""
        notices = list(self._place.check(ctx))
        receiver = self._receiver()
        try:
            receiver.look()
        finally:
            receiver.close()
        if receiver.plain:
            notices.append(f"{self._name} is not encrypted: whoever is on the way reads rows and headers")
        return notices

    def writer(self, ctx: TaskContext) -> FileWriter:
        shape = Shape(self._layout, "jsonl", envelope=True, partition_by=None, roll=Roll(), announced=False)
        return FileWriter(self._place.staging(), self.scope(ctx.job), shape, ctx)

    def committer(self, ctx: JobContext) -> HttpCommitter:
        return HttpCommitter(self._place.path, self._layout, self._receiver(), self._rules)

    def _receiver(self) -> Receiver:
        return Receiver(*self._given)
