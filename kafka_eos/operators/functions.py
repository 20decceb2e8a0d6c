"""What a user implements for ``process``: a function with named state a key.

Rule: what one record writes to state takes effect only when its call has returned normally.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar, overload

T = TypeVar("T")
K = TypeVar("K")
U = TypeVar("U")


class KeyState(Protocol[T]):
    """One value of the current key.

    None means "no value". The trap: a value that is changed in place is not written; call ``put`` with the value
    that you want to keep.
    """

    def get(self) -> T:
        """The value, or the default if the key has none."""

    def put(self, value: T) -> None: ...

    def clear(self) -> None: ...


class ProcessContext(Protocol):
    """What ``open`` gets."""

    @overload
    def value_state(self, name: str, tp: type[T]) -> KeyState[T | None]: ...

    @overload
    def value_state(self, name: str, tp: type[T], default: T) -> KeyState[T]: ...

    def value_state(self, name: str, tp: Any, default: Any = None) -> KeyState[Any]:
        """A state of the operator, for the key at hand when it is used.

        ``tp`` decides how it is stored (pydantic models as Avro, the rest as MessagePack). ``default`` is what a
        key without a value reads; it is shared by all keys, so it must not be changed in place.
        """


class ProcessFunction(Generic[K, T, U]):
    """Subclass it for ``KeyedStream.process``. Every session of a worker starts with a fresh one."""

    def open(self, ctx: ProcessContext) -> None:
        """Declare states here and keep the handles. Nothing else that is kept on ``self`` survives a restart."""

    def process(self, key: K, value: T) -> Iterable[U]:
        """Outputs for one record. Called in order within a key."""
        raise NotImplementedError(f"{type(self).__name__} does not define process(key, value)")
