"""Asking a cluster until there is an answer that is final.

Rule: every call ends within its patience. A coordinator that moves, loads or restarts is asked again until
then; what is still unknown is Retryable, never a guess.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from kafka_eos._util.logging_setup import Seldom
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.credentials import may_change
from kafka_eos.connectors.kafka.rpc.brokers import Brokers, CoordinatorOf, Place, not_allowed
from kafka_eos.connectors.kafka.rpc.connection import Refused
from kafka_eos.connectors.kafka.rpc.error_codes import ASK_AGAIN, FORBIDDEN, LEADER_UNKNOWN, name_of
from kafka_eos.connectors.kafka.rpc.messages.cluster import metadata
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.core.errors import ConfigError, LoginRefused, Retryable

A = TypeVar("A")

_REQUEST_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 2.0
"""For how long a first connection is refused, each time, before that is final: a broker that starts refuses too."""
_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_SILENT_SECONDS: Final = 3.0
"""Without an answer: it is said then, however long it is asked for."""
_LOG: Final = logging.getLogger("kafka_eos.kafka")
_LOG.addFilter(Seldom())


class Asking:
    """What all that is asked has in common. Thread-safe; connects on the first call and again after a restart.

    ``patience`` is how many seconds a call may take in all before it raises Retryable.
    """

    def __init__(self, cluster: Cluster, patience: float = 20.0) -> None:
        self._cluster, self._patience, self._brokers = cluster, patience, Brokers(cluster)

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
        """Every broker. One that was just started may name none, not even itself: asked again."""
        seen = self._ask(metadata([]), None, lambda answer: 0 if answer.brokers else LEADER_UNKNOWN)
        self._brokers.learn(seen.brokers.items())
        return sorted(seen.brokers)

    def _ask(
        self,
        request: Request[A],
        place: Place,
        code: Callable[[A], int],
        *,
        forbidden: bool = True,
        seconds: float | None = None,
    ) -> A:
        """Send until there is an answer whose ``code`` is final. ConfigError if it is forbidden, unless told not to."""
        patience = self._patience if seconds is None else min(seconds, self._patience)
        began = time.monotonic()
        pause, refused, said = _PAUSE, None, False
        while True:
            try:
                answer = self._brokers.ask(request, place, min(began + patience, time.monotonic() + _REQUEST_SECONDS))
                if code(answer) not in ASK_AGAIN:
                    break
                last = name_of(code(answer))
            except Retryable as error:
                last, refused = f"{request.name}: {error}", None
            except Refused as error:
                refused = refused or time.monotonic()
                last = f"{request.name}: {error}"
                self._expect_welcome(request.name, error, refused, began + patience - pause)
            if last != "CONCURRENT_TRANSACTIONS":
                self._brokers.forget(place)
            if time.monotonic() + pause > began + patience:
                what = f"{request.name} for {_shown(place)} on {self.bootstrap}"
                tried = last.removeprefix(f"{request.name}: ")
                raise Retryable(f"{what}: no answer in {patience:g} s; the last try: {tried}")
            if not said and time.monotonic() > began + _SILENT_SECONDS:
                said = True
                _LOG.warning(
                    "Kafka at %s has no answer yet: %s. It is asked again, for %g s in all",
                    self.bootstrap,
                    last,
                    patience,
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if forbidden and code(answer) in FORBIDDEN:
            raise ConfigError(not_allowed(self._cluster, request, code(answer)))
        return answer

    def _expect_welcome(self, what: str, error: Refused, since: float, end: float) -> None:
        """ConfigError if waiting will not help. TLS that fails after it has worked is a broker that ends or starts.

        LoginRefused if it may help later: a new password is right for the broker at one moment, and stands in its file
        at another.
        """
        renewed = may_change(self._cluster.config)
        if self._brokers.welcome and error.login and not renewed:
            raise ConfigError(f"{what}: the broker refused the user: {error}{self._who(error)}") from error
        if not self._brokers.welcome and time.monotonic() >= min(since + _REFUSED_SECONDS, end):
            said = f"Kafka at {self.bootstrap} refuses the connection: {error}{self._who(error)}"
            raise (LoginRefused if renewed else ConfigError)(said) from error

    def _who(self, error: Refused) -> str:
        """Which settings say who this is, if that is why; a secret's own value is none of them."""
        config = self._cluster.config
        given = [f"{name}={config[name]}" for name in ("sasl.username", "sasl.password.from_file") if name in config]
        given += ["sasl.password"] if "sasl.password" in config else []
        return f". Check {' and '.join(given)}" if error.login and given else ""


def _shown(place: Place) -> str:
    return str(place) if isinstance(place, CoordinatorOf | int) else "any broker"
