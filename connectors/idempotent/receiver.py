"""The interface of a system that honors keys, and the classification of its errors.

Rule: only errors that are certainly about a row count against it, and only temporary errors are retried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from kafka_eos.connectors._outbox.outbox_rows import Row
from kafka_eos.core.error_messages import describe_error
from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable

T = TypeVar("T")


class DeliveryRefused(Exception):
    """Raised by ``Receiver.send``: the receiver will never accept these rows. Its text is the reason.

    If there are several rows, each is then sent alone, to find the rejected one.
    """


class Receiver:
    """A system that ignores a key that it knows. Complete ``name`` and ``send``.

    Several threads may send at the same time; the rows of one subtask are sent in sequence.
    """

    @property
    def name(self) -> str:
        """Return the name of the system: the same everywhere and forever. It is stored, so it must not be a secret."""
        raise NotImplementedError

    def send(self, rows: Sequence[Row]) -> None:
        """Return when the receiver has all of these rows, including those that it had before.

        Raise ``DeliveryRefused`` for rows that it will never accept. Any other error is retried if ``is_retryable``
        accepts it, and otherwise stops the job without loss.
        """
        raise NotImplementedError

    def is_retryable(self, error: Exception) -> bool:
        """Return whether an error is temporary: the receiver is unavailable or busy."""
        return isinstance(error, OSError)

    def check_reachable(self) -> None:
        """Raise an error if the receiver cannot be reached. It must change nothing."""

    def close(self) -> None:
        """Release connections. ``send`` may be called afterwards, and opens new ones."""


class ReceiverAdapter:
    """An adapter from a user's Receiver to the outbox's DeliveryClient."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self.name = receiver, _named(receiver)

    def check_reachable(self) -> None:
        self._asked(self._receiver.check_reachable, "look for")

    def deliver(self, rows: Sequence[Row]) -> str | None:
        return self._asked(partial(self._refusal, rows), "send to")

    def close(self) -> None:
        self._receiver.close()

    def _refusal(self, rows: Sequence[Row]) -> str | None:
        try:
            self._receiver.send(rows)
        except DeliveryRefused as refused:
            return str(refused) or "refused"
        return None

    def _asked(self, call: Callable[[], T], what: str) -> T:
        try:
            return call()
        except KafkaEosError:
            raise
        except Exception as error:
            kind = Retryable if self._receiver.is_retryable(error) else ConfigError
            raise kind(f"could not {what} {self.name}: {describe_error(error)}") from error


def _named(receiver: Receiver) -> str:
    name: object = receiver.name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{type(receiver).__name__}.name must be a string that identifies the system (got {name!r})")
    return name
