"""``HttpSink``: rows for a receiver that supports idempotency keys.

Rule: nothing is sent before its epoch is decided, and nothing is deleted before the receiver has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.connectors._outbox.outbox_sink import OutboxSink
from kafka_eos.connectors.http.client import HttpDeliveryClient
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class HttpSink(OutboxSink[T]):
    """A sink that sends a stream of ``T`` to ``url``, each value at least once, always under the same unique key.

    - ``url``: the receiver, such as a webhook or a service.
    - ``outbox``: a directory where rows wait for their epoch, on a persistent disk that all processes of the job share,
      including the supervisor. Each sink needs its own.
    - ``value``: the type of the values, by default that of the stream; if it is unknown, any value that comes back
      equal from JSON.
    - ``method``: the method of the requests.
    - ``headers``: headers of each request, such as a login. They are neither stored nor shown.
    - ``batch``: rows per request. With more than one the body is an array of ``{"id": key, "value": …}``, otherwise it
      is the value itself.
    - ``timeout``: seconds that a response may take.
    - ``set_aside``: this many rows of a subtask and epoch that the receiver permanently rejects are written to
      ``<outbox>/refused``, and the job continues without them; one more stops the job.
    - ``arrived``: statuses besides 2xx that mean that the receiver has the rows: (409,) if it sends that for a key that
      it knows. Otherwise 409 means that it is working on the key, and the request is retried.
    - ``client``: creates the ``httpx2.Client`` that sends, for custom certificates, proxies or logins.

    Each request has the header ``Idempotency-Key``: a receiver that ignores a key that it knows gets each value
    effectively once.
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
        timeout: Seconds = 30.0,
        set_aside: int = 0,
        arrived: Sequence[int] = (),
        client: Callable[[], Any] | None = None,
    ) -> None:
        if method not in ("POST", "PUT", "PATCH"):
            raise ConfigError(f"method={method!r}: HttpSink sends POST, PUT or PATCH")
        seconds = to_seconds(timeout)
        if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
            raise ConfigError(f"timeout must be a positive number of seconds (got {timeout!r})")
        self._method = method
        given = url, method, dict(headers or {}), seconds, client, batch != 1, frozenset(arrived)
        self._is_plain = HttpDeliveryClient(*given).plain
        super().__init__(lambda: HttpDeliveryClient(*given), outbox, value, batch, set_aside)

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the receiver's address."""
        return [Dataset.at(self._name)]

    def describe(self) -> Mapping[str, Json]:
        description = {"connector": "http", "url": self._name, "method": self._method}
        return {**description, **self.described(key="header Idempotency-Key")}

    def __repr__(self) -> str:
        return f"HttpSink({self._name!r})"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at a start; see ``Sink.check``. Raise Retryable if the address does not respond."""
        notices = [*super().check(ctx)]
        if self._is_plain:
            notices.append(f"{self._name} is not encrypted: others on the network can read rows and headers")
        return notices
