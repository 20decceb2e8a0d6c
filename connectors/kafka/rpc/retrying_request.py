"""Requests to a cluster, retried until the response is final.

Rule: every call ends within its timeout. A request to a coordinator that moves, loads or restarts is retried until
then; if the outcome is still unknown, the call raises Retryable and never guesses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from kafka_eos._util.logging_setup import RepeatFilter
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.credentials import is_renewable
from kafka_eos.connectors.kafka.rpc.brokers import Brokers, CoordinatorKey, Destination, OtherCluster, not_allowed
from kafka_eos.connectors.kafka.rpc.connection import ConnectionRejected
from kafka_eos.connectors.kafka.rpc.error_codes import FORBIDDEN, LEADER_UNKNOWN, RETRYABLE, name_of
from kafka_eos.connectors.kafka.rpc.messages.cluster import metadata
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.core.errors import ConfigError, LoginRefused, Retryable

A = TypeVar("A")

_REQUEST_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 2.0
"""Seconds of rejected first connections before that is final: a broker that is starting also rejects them."""
_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_SILENT_SECONDS: Final = 3.0
"""Seconds without a response after which a warning is logged, whatever the timeout."""
_LOG: Final = logging.getLogger("kafka_eos.kafka")
_LOG.addFilter(RepeatFilter())


class RequestSender:
    """The base of all requests, which retries them. Thread-safe; connects on the first call.

    ``patience``: the seconds that a call may take in total before it raises Retryable.
    """

    def __init__(self, cluster: Cluster, patience: float = 20.0) -> None:
        self._cluster = cluster
        self._patience = patience
        self._brokers = Brokers(cluster)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._brokers.close()

    def _nodes(self) -> list[int]:
        """Return every broker. A broker that was just started may name none, not even itself: then retry."""
        seen = self._send(metadata([]), None, lambda answer: 0 if answer.brokers else LEADER_UNKNOWN)
        self._brokers.learn(seen.brokers.items())
        return sorted(seen.brokers)

    def _send(
        self,
        request: Request[A],
        place: Destination,
        code: Callable[[A], int],
        *,
        forbidden: bool = True,
        seconds: float | None = None,
        proof: Request[int] | None = None,
    ) -> A:
        """Send a request until the response is final. Raise Retryable after the timeout.

        It is an OtherCluster if a broker of another cluster responded, and none of the expected one.
        Raises ConfigError if it is forbidden, unless ``forbidden`` is false. ``proof``: see ``Brokers.ask``.
        """
        patience = self._patience if seconds is None else min(seconds, self._patience)
        began = time.monotonic()
        pause, refused, warned = _PAUSE, None, False
        other: OtherCluster | None = None
        while True:
            try:
                until = min(began + patience, time.monotonic() + _REQUEST_SECONDS)
                answer = self._brokers.ask(request, place, until, proof)
                if code(answer) not in RETRYABLE:
                    break
                last = name_of(code(answer))
            except Retryable as error:
                last, refused = f"{request.name}: {error}", None
                other = error if isinstance(error, OtherCluster) else other
            except ConnectionRejected as error:
                refused = refused or time.monotonic()
                last = f"{request.name}: {error}"
                self._expect_welcome(request.name, error, refused, began + patience - pause)
            if last != "CONCURRENT_TRANSACTIONS":
                self._brokers.forget(place)
            if time.monotonic() + pause > began + patience:
                what = f"{request.name} for {_shown(place)} on {self.bootstrap}"
                tried = last.removeprefix(f"{request.name}: ")
                text = f"{what}: no response in {patience:g} s; the last attempt: {tried}"
                raise Retryable(text) if other is None else OtherCluster(text, other.cluster_id)
            if not warned and time.monotonic() > began + _SILENT_SECONDS:
                warned = True
                _LOG.warning(
                    "Kafka at %s has not responded yet: %s. The request is retried for %g s in all",
                    self.bootstrap,
                    last,
                    patience,
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if forbidden and code(answer) in FORBIDDEN:
            raise ConfigError(not_allowed(self._cluster, request, code(answer)))
        return answer

    def _expect_welcome(self, what: str, error: ConnectionRejected, since: float, end: float) -> None:
        """Raise an error if the rejection is final. TLS that fails after it has worked means that a broker stops or
        starts.

        LoginRefused means that the login may work later: a changed password may be valid on the broker earlier or later
        than in its file. ConfigError means that it will not.
        """
        renewed = is_renewable(self._cluster.config)
        if self._brokers.welcome and error.login and not renewed:
            raise ConfigError(f"{what}: the broker rejected the user: {error}{self._who(error)}") from error
        if not self._brokers.welcome and time.monotonic() >= min(since + _REFUSED_SECONDS, end):
            reason = f"Kafka at {self.bootstrap} refuses the connection: {error}{self._who(error)}"
            raise (LoginRefused if renewed else ConfigError)(reason) from error

    def _who(self, error: ConnectionRejected) -> str:
        """Return which settings give the login, if that was rejected; never the value of a secret."""
        config = self._cluster.config
        given = [f"{name}={config[name]}" for name in ("sasl.username", "sasl.password.from_file") if name in config]
        given += ["sasl.password"] if "sasl.password" in config else []
        return f". Check {' and '.join(given)}" if error.login and given else ""


def _shown(place: Destination) -> str:
    return str(place) if isinstance(place, CoordinatorKey | int) else "any broker"
