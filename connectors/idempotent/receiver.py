"""What you say of a system that honours keys, and what its errors mean.

Rule: only what is surely about a row is held against it, and only what passes by itself is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from kafka_eos.connectors._outbox.outbox_rows import Row
from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable

T = TypeVar("T")


class Refused(Exception):
    """Raised by ``Receiver.send``: the receiver will never take what it was given. Its text is the reason.

    Of several rows each is sent alone then, to find out which.
    """


class Receiver:
    """A system that does nothing under a key that it knows. Complete ``name`` and ``send``.

    Several threads may send at the same time; rows of one subtask come one after the other.
    """

    @property
    def name(self) -> str:
        """Which system this is, the same from everywhere and for ever: it is stored, so no secret."""
        raise NotImplementedError

    def send(self, rows: Sequence[Row]) -> None:
        """Return when the receiver has all of them, those too that it had before.

        Raise ``Refused`` for what it will never take. What else is raised is asked again if it ``passes``, and stops
        the job without loss if it does not.
        """
        raise NotImplementedError

    def passes(self, error: Exception) -> bool:
        """Does this pass by itself? The receiver is away, busy, or at work on the key."""
        return isinstance(error, OSError)

    def look(self) -> None:
        """At the start: raise if the receiver cannot be reached. It changes nothing there."""

    def close(self) -> None:
        """Let go of connections. ``send`` may be called after it, and opens new ones."""


class Delivering:
    """A ``Receiver`` as ``outbox.committer`` asks it."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self.name = receiver, _named(receiver)

    def look(self) -> None:
        self._asked(self._receiver.look, "look for")

    def deliver(self, rows: Sequence[Row]) -> str | None:
        return self._asked(partial(self._refusal, rows), "send to")

    def close(self) -> None:
        self._receiver.close()

    def _refusal(self, rows: Sequence[Row]) -> str | None:
        try:
            self._receiver.send(rows)
        except Refused as refused:
            return str(refused) or "refused"
        return None

    def _asked(self, call: Callable[[], T], what: str) -> T:
        try:
            return call()
        except KafkaEosError:
            raise
        except Exception as error:
            kind = Retryable if self._receiver.passes(error) else ConfigError
            raise kind(f"could not {what} {self.name}: {type(error).__name__} {error}".rstrip()) from error


def _named(receiver: Receiver) -> str:
    name: object = receiver.name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{type(receiver).__name__}.name says which system it is: a text, not {name!r}")
    return name
