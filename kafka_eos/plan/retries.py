"""Retries and circuit breaker of ``async_map``.

Pure. Rule: decisions depend only on the arguments; clock and random number are arguments too.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos._util.call_site import quotes_user_line
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import PlanError


class Retries(Struct, frozen=True):
    """A failed request is retried ``times`` times. Pauses are in seconds."""

    times: int
    first: float
    most: float

    def pause(self, failures: int, chance: float) -> float:
        """Return the seconds until the next attempt after so many ``failures``.

        ``chance``, from 0 to 1, spreads requests that failed together: the result is between half of the pause and all
        of it.
        """
        return min(self.most, self.first * 2.0 ** min(failures - 1, 64)) * (1 + chance) / 2

    def __str__(self) -> str:
        return f"{self.times} retries, {self.first:g} to {self.most:g} s apart"


class Breaker(Struct, frozen=True):
    """After ``failures`` consecutive failures no request is sent for ``pause`` seconds; then one request tests the
    service."""

    failures: int
    pause: float

    def __str__(self) -> str:
        return f"pausing {self.pause:g} s after {self.failures} failures in a row"


class Circuit(Struct, frozen=True):
    """The recent health of a service. Times are seconds of a monotonic clock."""

    breaker: Breaker | None
    failures: int = 0
    """Consecutive failures."""
    until: float | None = None
    """No request is sent before then: the circuit is open."""

    def admit(self, now: float) -> tuple[Circuit, float]:
        """Return 0 seconds if a request may be made now, else how long to wait.

        The first caller after the pause sends a test request; the others wait for another pause, or for a success.
        """
        if self.breaker is None or self.until is None:
            return self, 0.0
        if now < self.until:
            return self, self.until - now
        return replace(self, until=now + self.breaker.pause), 0.0

    def succeeded(self) -> Circuit:
        return replace(self, failures=0, until=None)

    def failed(self, now: float) -> Circuit:
        if self.breaker is None:
            return self
        failures = self.failures + 1
        opens = failures >= self.breaker.failures
        return replace(self, failures=failures, until=now + self.breaker.pause if opens else None)


@quotes_user_line
def retries(times: int, *, first: Seconds = 0.1, most: Seconds = 10.0) -> Retries:
    """Retry so many times; the first pause is ``first`` seconds, and pauses double up to ``most``.

    A random factor shortens each pause by up to a half, so that requests that failed together are not retried together.
    """
    if type(times) is not int or times < 1:
        raise PlanError(f"retries: times must be a whole number of at least 1 (got {times!r}); or leave retries= out")
    shortest, longest = to_seconds(first), to_seconds(most)
    if not 0 < shortest <= longest < float("inf"):
        raise PlanError(f"retries: pauses must satisfy 0 < first <= most (got first={first!r}, most={most!r})")
    return Retries(times, shortest, longest)


@quotes_user_line
def breaker(failures: int, *, pause: Seconds) -> Breaker:
    """Stop requests for ``pause`` seconds after so many consecutive failures, of any requests.

    Then one is sent; if it succeeds, all continue. Rows wait meanwhile, with back-pressure: none is lost or rejected.
    """
    if type(failures) is not int or failures < 1:
        raise PlanError(f"breaker: failures must be a whole number of at least 1 (got {failures!r})")
    seconds = to_seconds(pause)
    if not 0 < seconds < float("inf"):
        raise PlanError(f"breaker: pause must be a positive number of seconds (got {pause!r})")
    return Breaker(failures, seconds)


def check_request_options(
    capacity: int,
    timeout: Seconds,
    retry_on: tuple[type[Exception], ...],
    retries: Retries | None,
    breaker: Breaker | None,
) -> dict[str, Any]:
    """Check the request options of async_map. Raises PlanError."""
    if type(capacity) is not int or capacity < 1:
        raise PlanError(f"capacity must be a whole number of at least 1 (got {capacity!r})")
    seconds = to_seconds(timeout)
    if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
        raise PlanError(f"timeout must be a positive number of seconds (got {timeout!r})")
    if type(retry_on) is not tuple or not all(type(e) is type and issubclass(e, Exception) for e in retry_on):
        raise PlanError(f"retry_on must be a tuple of exception classes (got {retry_on!r})")
    if not isinstance(retries, Retries | None):
        raise PlanError(f"retries must be retries(times, first=…, most=…) (got {retries!r})")
    if not isinstance(breaker, Breaker | None):
        raise PlanError(f"breaker must be breaker(failures, pause=…) (got {breaker!r})")
    return {
        "capacity": capacity,
        "timeout": seconds,
        "retry_on": retry_on,
        "retries": retries,
        "breaker": breaker,
    }
