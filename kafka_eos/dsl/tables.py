"""``Table``: what keys have now, read from a source of records, for the joins of streams.

Rule: a table has no verbs; it is looked up in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

from kafka_eos.dsl.draft import Draft
from kafka_eos.dsl.lines import mistake
from kafka_eos.dsl.upstream import Upstream
from kafka_eos.plan import SAME_KEYS
from kafka_eos.schemas.types import returned, type_name

K = TypeVar("K")
V = TypeVar("V")

_KEYS: Final = (str, int, bytes, tuple)
"""Of which no two are ever equal."""
_BOTH: Final = {"key", "value"}


class Table(Upstream, Generic[K, V]):
    """What each key has now. ``keyed.join(table, fn)`` and ``left_join`` look it up."""

    def __init__(self, draft: Draft, node: str, tp: Any, name: str) -> None:
        super().__init__(draft, node, tp)
        self._name = name

    @property
    def _values(self) -> Any:
        """The type of what is stored for a key, where it is known."""
        return self._parts[1]

    @property
    def _keys(self) -> type[Any] | None:
        """The one class that all keys are of, where it is known."""
        return _key_class(self._parts[0])

    @property
    def _parts(self) -> tuple[Any, Any]:
        parts = get_args(self._type)
        return parts if len(parts) == len(("key", "value")) else (None, None)

    def _check_keys(self, key_by: Callable[..., Any]) -> None:
        """PlanError with the user's line if what ``key_by`` says that it gives is in no row of the table."""
        given = _key_class(returned(key_by))
        if self._keys is not None and given is not None and given is not self._keys:
            raise mistake(
                f"the keys of table {self._name!r} are {self._keys.__name__}, and those of the stream "
                f"{given.__name__}: no row would find any. {SAME_KEYS}"
            )


def _key_class(tp: Any) -> type[Any] | None:
    found = get_origin(tp) or tp
    return found if found in _KEYS else None


def check_table(name: str, tp: Any, *, skips: bool) -> None:
    """PlanError with the user's line if a table cannot be made of rows of type ``tp``, where it is known."""
    if skips:
        raise mistake(
            f'table {name!r} would begin without what its topic has already: leave start= out, or say "earliest".'
        )
    if isinstance(tp, type) and not _BOTH <= {*dir(tp), *getattr(tp, "__annotations__", ())}:
        raise mistake(
            f"table {name!r} needs rows with a key and a value, and those of its source are {type_name(tp)}. Read it "
            "with KafkaSource.records(topic, key=..., value=...)."
        )
