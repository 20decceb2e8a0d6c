"""``IdempotentSink``: rows for your own receiver that honors idempotency keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.connectors._outbox.outbox_sink import OutboxSink
from kafka_eos.connectors.idempotent.receiver import Receiver, ReceiverAdapter
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class IdempotentSink(OutboxSink[T]):
    """A sink that sends a stream of ``T`` to ``receiver``, each value at least once, always under the same unique key.

    - ``receiver``: the object that sends, see ``Receiver``.
    - ``outbox``: a directory where rows wait for their epoch, on a persistent disk that all processes of the job share,
      including the supervisor. Each sink needs its own.
    - ``value``: the type of the values, by default that of the stream; if it is unknown, any value that comes back
      equal from JSON.
    - ``batch``: most rows per call of ``send``.
    - ``set_aside``: this many rows of a subtask and epoch that the receiver permanently rejects are written to
      ``<outbox>/refused``, and the job continues without them; one more stops the job.

    A receiver that ignores a key that it knows gets each value effectively once.
    """

    kind = "idempotent"

    def __init__(
        self,
        receiver: Receiver,
        *,
        outbox: str | os.PathLike[str],
        value: type[T] | Codec[T] | None = None,
        batch: int = 1,
        set_aside: int = 0,
    ) -> None:
        if not isinstance(receiver, Receiver):
            raise ConfigError(
                f"IdempotentSink({receiver!r}): pass an instance of a subclass of Receiver that defines send"
            )
        super().__init__(lambda: ReceiverAdapter(receiver), outbox, value, batch, set_aside)

    def describe(self) -> Mapping[str, Json]:
        return {"connector": "idempotent", "receiver": self._name, **self.described(key="key of each row")}

    def __repr__(self) -> str:
        return f"IdempotentSink({self._name!r})"
