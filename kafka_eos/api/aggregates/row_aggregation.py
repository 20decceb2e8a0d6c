"""Several aggregates at work as one, and the rows that their results make.

    Aggregation    its accumulator has a field for each of them, stored by name: one that a job has from now on begins
                   with nothing, one that it no longer has is forgotten
    Rows           what a row belongs to (a key, a window) and the results, in a class of the user's or one made here

Rule: a row comes back as what it was wherever it is stored or sent, or its type says that nobody knows (``Any``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, get_origin

import msgspec

from kafka_eos.api.aggregates.aggregate import Aggregate
from kafka_eos.codecs.msgpack_codec import as_key
from kafka_eos.codecs.type_inspection import is_model, type_name
from kafka_eos.core.errors import PlanError


class Aggregation(Aggregate[Any, Any, dict[str, Any]]):
    """Several aggregates, by the name of the field that each one makes."""

    name = "aggregation"
    returns = dict[str, Any]

    def __init__(self, parts: Mapping[str, Aggregate[Any, Any, Any]]) -> None:
        self.parts = parts
        fields = [(name, part.accumulator, msgspec.field(default_factory=part.create)) for name, part in parts.items()]
        self.accumulator = msgspec.defstruct("Accumulators", fields, frozen=True)
        self._adds = [part.add if part.by_time is self.by_time else _of_value(part.add) for part in parts.values()]
        self._merges = [part.merge for part in parts.values()]
        self._results = [(name, part.result) for name, part in parts.items()]

    @classmethod
    def of_all(
        cls, unnamed: Sequence[object], named: Mapping[str, object], values: Any, kept: Sequence[str] = ()
    ) -> Aggregation:
        """Those that a verb was given, for values of a type. ``kept``: fields that rows have besides. PlanError."""
        parts: dict[str, Aggregate[Any, Any, Any]] = {}
        for name, part in [*((getattr(each, "name", ""), each) for each in unnamed), *named.items()]:
            if not isinstance(part, Aggregate):
                raise PlanError(f"an aggregate is an object like count() or sum_(...), not {part!r:.80}")
            if name in parts or name in kept:
                raise PlanError(
                    f"two fields of a row are called {name!r}; give this one a name: other={part.name}(...)"
                )
            parts[name] = part.of(values)
        if not parts:
            raise PlanError("there is nothing to aggregate; give an aggregate, such as count()")
        return cls(parts)

    @property
    def by_time(self) -> bool:
        return any(part.by_time for part in self.parts.values())

    def create(self) -> Any:
        return self.accumulator()

    def add(self, acc: Any, value: Any) -> Any:
        parts = msgspec.structs.astuple(acc)
        if len(parts) == 1:  # of most rows
            return self.accumulator(self._adds[0](parts[0], value))
        return self.accumulator(*[add(part, value) for add, part in zip(self._adds, parts, strict=True)])

    def merge(self, one: Any, other: Any) -> Any:
        both = zip(self._merges, msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
        return self.accumulator(*[merge(mine, theirs) for merge, mine, theirs in both])

    def result(self, acc: Any) -> dict[str, Any]:
        parts = zip(self._results, msgspec.structs.astuple(acc), strict=True)
        return {name: result(part) for (name, result), part in parts}


class Rows:
    """Rows that begin with what they belong to: fields ``leading``, with their types (None: a key of any type)."""

    def __init__(self, aggregation: Aggregation, leading: Mapping[str, Any], out: Any = None) -> None:
        """``out``: a model, Struct or dataclass that has a field for each; without one, a Struct is made.

        PlanError if it has not.
        """
        self._aggregation, self._leading = aggregation, tuple(leading)
        self.type = self._made(leading) if out is None else out
        if out is not None:
            _expect_fields(out, [*leading, *aggregation.parts])

    @cached_property
    def known(self) -> Any:
        """The type of the rows for codecs; None if a result may come back as something else."""
        return None if any(part.returns is Any for part in self._aggregation.parts.values()) else self.type

    def row(self, belongs_to: Sequence[Any], acc: Any) -> Any:
        """``belongs_to``: a value for each leading field."""
        fields = self._aggregation.result(acc)
        fields.update(zip(self._leading, belongs_to, strict=True))
        return self.type(**fields)

    def _made(self, leading: Mapping[str, Any]) -> type:
        keys = [name for name, tp in leading.items() if tp is None or get_origin(tp) is tuple]

        def as_keys(row: Any) -> None:
            for name in keys:  # a tuple that comes back as a list
                if isinstance(value := getattr(row, name), list):
                    msgspec.structs.force_setattr(row, name, as_key(value))

        fields = [(name, Any if name in keys else tp) for name, tp in leading.items()]
        results = [(name, part.returns) for name, part in self._aggregation.parts.items()]
        return msgspec.defstruct("Row", fields + results, frozen=True, namespace={"__post_init__": as_keys})


def _of_value(add: Any) -> Any:
    """``add`` of an aggregate that does not go by event time, beside one that does."""
    return lambda acc, timed: add(acc, timed[0])


def _expect_fields(out: Any, names: Sequence[str]) -> None:
    if is_model(out):
        fields = {each.alias or name: each.is_required() for name, each in out.model_fields.items()}
    elif isinstance(out, type) and issubclass(out, msgspec.Struct):
        fields = {each.name: each.required for each in msgspec.structs.fields(out)}
    elif dataclasses.is_dataclass(out):
        fields = {each.name: _required(each) for each in dataclasses.fields(out) if each.init}
    else:
        raise PlanError(f"out is a pydantic model, a Struct or a dataclass, not {out!r:.80}")
    missing = [name for name in names if name not in fields]
    unfilled = [name for name, required in fields.items() if required and name not in names]
    if missing or unfilled:
        said = [f"it has no field {', '.join(missing)}"] if missing else []
        said += [f"nothing fills {', '.join(unfilled)}"] if unfilled else []
        raise PlanError(
            f"{type_name(out)} does not fit a row with the fields {', '.join(names)}: {'; '.join(said)}. Name "
            "the aggregates, and the key with key=, as its fields"
        )


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
