"""Several aggregates combined into one, and the rows built from their results.

    CompositeAggregate  its accumulator has one field per aggregate, stored by name. An aggregate that is added to a
                        job starts empty; the field of a removed aggregate is dropped
    ResultRowBuilder    builds rows of leading fields (key, window) and results, of the user's class or a generated one

Rule: storage and transfer preserve a row, or its type is declared unknown (``Any``).
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


class CompositeAggregate(Aggregate[Any, Any, dict[str, Any]]):
    """Several aggregates as one, by the name of their result field."""

    name = "aggregation"
    returns = dict[str, Any]

    def __init__(self, parts: Mapping[str, Aggregate[Any, Any, Any]]) -> None:
        self.parts = parts
        fields = [(name, part.accumulator, msgspec.field(default_factory=part.create)) for name, part in parts.items()]
        self.accumulator = msgspec.defstruct("Accumulators", fields, frozen=True)
        self._adds = [
            part.add if part.needs_event_time is self.needs_event_time else _of_value(part.add)
            for part in parts.values()
        ]
        self._merges = [part.merge for part in parts.values()]
        self._results = [(name, part.result) for name, part in parts.items()]

    @classmethod
    def of_all(
        cls, unnamed: Sequence[object], named: Mapping[str, object], values: Any, kept: Sequence[str] = ()
    ) -> CompositeAggregate:
        """Build it from the aggregates of an operation, for values of a type.

        ``kept``: other fields of the rows. PlanError.
        """
        parts: dict[str, Aggregate[Any, Any, Any]] = {}
        for given, part in [*((None, each) for each in unnamed), *named.items()]:
            if not isinstance(part, Aggregate):
                raise PlanError(f"an aggregate must be an object like agg.count() or agg.sum(...), not {part!r:.80}")
            name = part.name if given is None else given
            if name in parts or name in kept:
                raise PlanError(f"two fields of a row are named {name!r}; rename this one: other={part.name}(...)")
            parts[name] = part.for_type(values)
        if not parts:
            raise PlanError("no aggregate is given; pass one, such as count()")
        return cls(parts)

    @property
    def needs_event_time(self) -> bool:
        return any(part.needs_event_time for part in self.parts.values())

    def create(self) -> Any:
        return self.accumulator()

    def add(self, acc: Any, value: Any) -> Any:
        parts = msgspec.structs.astuple(acc)
        if len(parts) == 1:  # true for most rows
            return self.accumulator(self._adds[0](parts[0], value))
        return self.accumulator(*[add(part, value) for add, part in zip(self._adds, parts, strict=True)])

    def merge(self, one: Any, other: Any) -> Any:
        both = zip(self._merges, msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
        return self.accumulator(*[merge(mine, other) for merge, mine, other in both])

    def result(self, acc: Any) -> dict[str, Any]:
        parts = zip(self._results, msgspec.structs.astuple(acc), strict=True)
        return {name: result(part) for (name, result), part in parts}


class ResultRowBuilder:
    """Builds result rows: leading fields (key, window) and aggregate results."""

    def __init__(self, aggregation: CompositeAggregate, leading: Mapping[str, Any], out: Any = None) -> None:
        """``out``: a model, Struct or dataclass with a field for each result; without it, a Struct class is generated.

        Raises PlanError if a field is missing.
        """
        self._aggregation, self._leading = aggregation, tuple(leading)
        self.type = self._made(leading) if out is None else out
        if out is not None:
            _expect_fields(out, [*leading, *aggregation.parts])

    @cached_property
    def codec_type(self) -> Any:
        """Return the type of the rows for codecs; None if a result's type is unknown."""
        return None if any(part.returns is Any for part in self._aggregation.parts.values()) else self.type

    def row(self, belongs_to: Sequence[Any], acc: Any) -> Any:
        """Build a row. ``belongs_to``: a value for each leading field."""
        fields = self._aggregation.result(acc)
        fields.update(zip(self._leading, belongs_to, strict=True))
        return self.type(**fields)

    def _made(self, leading: Mapping[str, Any]) -> type:
        keys = [name for name, tp in leading.items() if tp is None or get_origin(tp) is tuple]

        def as_keys(row: Any) -> None:
            for name in keys:  # a tuple that was decoded as a list
                if isinstance(value := getattr(row, name), list):
                    msgspec.structs.force_setattr(row, name, as_key(value))

        fields = [(name, Any if name in keys else tp) for name, tp in leading.items()]
        results = [(name, part.returns) for name, part in self._aggregation.parts.items()]
        return msgspec.defstruct("Row", fields + results, frozen=True, namespace={"__post_init__": as_keys})


def _of_value(add: Any) -> Any:
    """Wrap ``add`` of an aggregate without event time, for use beside one that needs event time."""
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
        problems = [f"it has no field {', '.join(missing)}"] if missing else []
        problems += [f"nothing fills {', '.join(unfilled)}"] if unfilled else []
        raise PlanError(
            f"{type_name(out)} does not fit a row with the fields {', '.join(names)}: {'; '.join(problems)}. Name "
            "the aggregates, and the key with key=, as its fields"
        )


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
