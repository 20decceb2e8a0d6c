"""``HttpSink``: rows for a receiver that understands idempotency keys.

Rule: nothing is sent before its epoch is decided, and nothing is forgotten before the receiver has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._outbox.outbox_sink import OutboxSink
from kafka_eos.connectors.http.client import Receiver
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class HttpSink(OutboxSink[T]):
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

    kind = "http"

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
        if type(timeout) not in (int, float) or not 0 < timeout < float("inf"):
            raise ConfigError(f"timeout= is how many seconds an answer may take: some, not {timeout!r}")
        self._method = method
        given = url, method, dict(headers or {}), timeout, client, batch != 1, frozenset(arrived)
        self._is_plain = Receiver(*given).plain
        super().__init__(lambda: Receiver(*given), outbox, value, batch, set_aside)

    def describe(self) -> Mapping[str, Json]:
        said = {"connector": "http", "url": self._name, "method": self._method}
        return {**said, **self.described(key="header Idempotency-Key")}

    def __repr__(self) -> str:
        return f"HttpSink({self._name!r})"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """At start; see ``abc.Sink``. Raises Retryable if nobody answers at the address."""
        notices = [*super().check(ctx)]
        if self._is_plain:
            notices.append(f"{self._name} is not encrypted: whoever is on the way reads rows and headers")
        return notices
