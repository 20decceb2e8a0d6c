"""What all streams have: a place in the draft of a pipeline, and what is known of the values there.

Rule: whatever a verb is given is checked here, before the node is added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka_eos import plan
from kafka_eos._util.call_site import mistake, quoted, user_line
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.state import Ttl
from kafka_eos.api.aggregates import Aggregate
from kafka_eos.api.aggregates.row_aggregation import Aggregation, Rows
from kafka_eos.api.plan_builder import Draft
from kafka_eos.api.process_function_checks import expect_process_function
from kafka_eos.codecs import KeyCodec, state_codec, wire_codec
from kafka_eos.codecs.type_inspection import is_codec, returned
from kafka_eos.plan import FlatMap, MapBatches, Node, Process
from kafka_eos.plan.function_checks import expect_functions, expect_iterables, present
from kafka_eos.plan.process_functions import OutputTag, TimedFunction, defines
from kafka_eos.plan.watermarks import WatermarkStrategy

_MANY: Final = (FlatMap, MapBatches)
"""Nodes whose function gives any number of values."""


class Upstream:
    """A draft, the node whose output this is, and the type of its values where it is known."""

    def __init__(self, draft: Draft, node: str, tp: Any = None) -> None:
        self._draft, self._node, self._type = draft, node, tp
        draft._types[node] = tp

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._draft.name!r}, {self._node!r})"

    @property
    def _inner(self) -> Any:
        """The type of the values, to be part of another one; None if it is not known, or only as a codec."""
        return None if is_codec(self._type) else self._type

    def _grow(self, kind: type[Node], name: str | None, **parts: Any) -> str:
        """Add a node below this one; returns its name."""
        if "fn" in parts:
            quoted(lambda: (expect_iterables if kind in _MANY else expect_functions)(kind.kind, fn=parts["fn"]))
        given, derived = self._draft._name(name, kind.kind)
        parts = {"inputs": (self._node,), "derived": derived, **parts}
        self._draft._add(kind(name=given, where=user_line(), **parts))
        return given

    def _timed(self, fn: Callable[[Any], int] | None, watermarks: object, source: str, name: str) -> str:
        """Add the node that makes event times, and watermarks of ``source``; returns its name."""
        if not isinstance(watermarks, WatermarkStrategy):
            raise mistake(
                "watermarks= says how far rows are out of order: bounded(seconds), monotonic() or generated(...), "
                f"not {watermarks!r}{': are its brackets missing?' if callable(watermarks) else ''}"
            )
        if (generator := watermarks.generator) is not None:
            self._expect_functions("generated", on_event=generator.on_event, watermark=generator.watermark)
            self._stored(generator.state)
        return self._grow(plan.Timestamps, name, strategy=watermarks, source=source, **present(fn=fn))

    def _runs(
        self,
        kind: type[Process],
        function: TimedFunction[Any, Any] | type[TimedFunction[Any, Any]],
        name: str | None,
        **parts: Any,
    ) -> str:
        """Add a node that runs the user's function; returns the node that takes its main output."""
        factory = self._made_by(function, kind, (*kind.methods, "on_timer", "on_processing_timer"))
        parts["timers"] = defines(function, "on_timer")
        parts["processing_timers"] = defines(function, "on_processing_timer")
        node = self._grow(kind, name, factory=factory, key_codec=KeyCodec(), **parts)
        return self._draft._part(node, function.side_outputs)

    def _made_by(self, function: Any, kind: type[Node], methods: Sequence[str]) -> Callable[[], Any]:
        """What makes a fresh function for a session. PlanError with the user's line if it is none for such a node."""
        quoted(lambda: expect_process_function(kind, function))
        quoted(
            lambda: expect_iterables(
                kind.kind, **{each: getattr(function, each) for each in (*methods, "open", "close")}
            )
        )
        return function if isinstance(function, type) else lambda: copy.deepcopy(function)

    def _expect_functions(self, verb: str, **functions: object) -> None:
        """PlanError with the user's line if one of them does not give one value when it is called."""
        quoted(lambda: expect_functions(verb, **functions))

    def _expect_tags(self, **tags: object) -> None:
        """PlanError with the user's line if a parameter for a side output is given something else."""
        for parameter, tag in tags.items():
            if not isinstance(tag, OutputTag | None):
                raise mistake(f"{parameter}= is a side output, OutputTag(name, type), not {tag!r:.80}.")

    def _expect_ttl(self, ttl: object) -> None:
        """PlanError with the user's line if it is no time to live."""
        if not isinstance(ttl, Ttl | None):
            raise mistake(f"ttl= is a time to live, Ttl(seconds), not {ttl!r:.80}.")

    def _stored(self, tp: Any) -> Codec[Any]:
        """The codec of a state. PlanError with the user's line if its type cannot be stored."""
        return quoted(lambda: state_codec(tp))

    def _wire(self, values: Any) -> ListCodec[Any]:
        """The codec in which this stream's values change subtasks."""
        return self._sent(self._type if values is None else values)

    def _sent(self, tp: Any) -> ListCodec[Any]:
        """The codec in which values of a type change subtasks; of None, any that a codec takes without a type."""
        return quoted(lambda: wire_codec(tp))

    def _rows(
        self,
        aggregates: Sequence[Aggregate[Any, Any, Any]],
        named: Mapping[str, Aggregate[Any, Any, Any]],
        out: type[Any] | None,
        key: str,
        *numbers: str,
    ) -> tuple[Aggregation, Rows]:
        """Aggregates of a keyed stream, and rows of them: behind the key, and fields that hold whole numbers."""

        _expect_field_names(key, *numbers)

        def made() -> tuple[Aggregation, Rows]:
            parts = Aggregation.of_all(aggregates, named, self._inner, [key, *numbers])
            of_key = returned(self._draft._key_by(self._node).fn)
            return parts, Rows(parts, {key: of_key, **dict.fromkeys(numbers, int)}, out)

        return quoted(made)


def _expect_field_names(*fields: object) -> None:
    """PlanError with the user's line if an aggregate was given under the name of an option: ``key=count()``."""
    for field in fields:
        if not isinstance(field, str):
            options = ", ".join(f"{name}=" for name in ("key", "start", "end")[: len(fields)])
            raise mistake(
                f"{options} say how fields are called that rows have anyway; {field!r:.80} needs another name."
            )
