"""The base of all streams: a node in the plan under construction, and the known type of its values.

Rule: the arguments of an operation are checked here, before the node is added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka_eos import plan
from kafka_eos._util.call_site import call_quoting_user, plan_error, user_line
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.state import Ttl
from kafka_eos.api.aggregates import Aggregate
from kafka_eos.api.aggregates.row_aggregation import CompositeAggregate, ResultRowBuilder
from kafka_eos.api.plan_builder import PlanBuilder
from kafka_eos.api.process_function_checks import expect_process_function
from kafka_eos.codecs import KeyCodec, exchange_codec, state_codec
from kafka_eos.codecs.type_inspection import get_return_type, is_codec
from kafka_eos.plan import FlatMapNode, MapBatchesNode, Node, ProcessNode
from kafka_eos.plan.function_checks import drop_none, expect_functions, expect_iterables
from kafka_eos.plan.process_functions import OutputTag, TimedFunction, overrides
from kafka_eos.plan.watermarks import WatermarkStrategy

_MANY: Final = (FlatMapNode, MapBatchesNode)
"""Nodes whose function returns any number of values."""


class BaseStream:
    """A node's output in a plan builder, and the type of its values where known."""

    def __init__(self, draft: PlanBuilder, node: str, tp: Any = None) -> None:
        self._draft = draft
        self._node = node
        self._type = tp
        draft._types[node] = tp

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._draft.name!r}, {self._node!r})"

    @property
    def _value_type(self) -> Any:
        """Return the type of the values, to nest in another type; None if unknown."""
        return None if is_codec(self._type) else self._type

    def _append_node(self, kind: type[Node], name: str | None, **parts: Any) -> str:
        """Append a node to this stream; return its name."""
        if "fn" in parts:
            call_quoting_user(
                lambda: (expect_iterables if kind in _MANY else expect_functions)(kind.kind, fn=parts["fn"])
            )
        given, derived = self._draft._name(name, kind.kind)
        parts = {"inputs": (self._node,), "has_generated_name": derived, **parts}
        self._draft._add_node(kind(name=given, code_line=user_line(), **parts))
        return given

    def _append_timestamps(self, fn: Callable[[Any], int] | None, watermarks: object, source: str, name: str) -> str:
        """Append the node that assigns event times and watermarks."""
        if not isinstance(watermarks, WatermarkStrategy):
            raise plan_error(
                "watermarks= defines how late rows may be: bounded(seconds), monotonic() or "
                "generated(...), not "
                f"{watermarks!r}{': are its brackets missing?' if callable(watermarks) else ''}"
            )
        if (generator := watermarks.generator) is not None:
            self._expect_functions("generated", on_event=generator.on_event, watermark=generator.watermark)
            self._state_codec(generator.state)
        return self._append_node(plan.TimestampsNode, name, strategy=watermarks, source=source, **drop_none(fn=fn))

    def _append_process(
        self,
        kind: type[ProcessNode],
        function: TimedFunction[Any, Any] | type[TimedFunction[Any, Any]],
        name: str | None,
        **parts: Any,
    ) -> str:
        """Append a node that runs a process function."""
        factory = self._made_by(function, kind, (*kind.methods, "on_timer", "on_processing_timer"))
        parts["timers"] = overrides(function, TimedFunction.on_timer)
        parts["processing_timers"] = overrides(function, TimedFunction.on_processing_timer)
        node = self._append_node(kind, name, factory=factory, key_codec=KeyCodec(), **parts)
        return self._draft._add_side_outputs(node, function.side_outputs)

    def _made_by(self, function: Any, kind: type[Node], methods: Sequence[str]) -> Callable[[], Any]:
        """Return a factory of functions, one per session.

        PlanError with the user's line if ``function`` does not suit the node.
        """
        call_quoting_user(lambda: expect_process_function(kind, function))
        call_quoting_user(
            lambda: expect_iterables(
                kind.kind, **{each: getattr(function, each) for each in (*methods, "open", "close")}
            )
        )
        return function if isinstance(function, type) else lambda: copy.deepcopy(function)

    def _expect_functions(self, operation: str, **functions: object) -> None:
        """Raise PlanError with the user's line if a function does not return one value when it is called."""
        call_quoting_user(lambda: expect_functions(operation, **functions))

    def _expect_tags(self, **tags: object) -> None:
        """Raise PlanError with the user's line if a side output parameter is not an OutputTag."""
        for parameter, tag in tags.items():
            if not isinstance(tag, OutputTag | None):
                raise plan_error(f"{parameter}= is a side output, OutputTag(name, type), not {tag!r:.80}.")

    def _expect_ttl(self, ttl: object) -> None:
        """Raise PlanError with the user's line if ``ttl`` is not a time to live."""
        if not isinstance(ttl, Ttl | None):
            raise plan_error(f"ttl= must be a Ttl(seconds) (got {ttl!r:.80}).")

    def _state_codec(self, tp: Any) -> Codec[Any]:
        """Return the state codec of a type. Raises PlanError with the user's line if its type cannot be stored."""
        return call_quoting_user(lambda: state_codec(tp))

    def _exchange_codec(self, values: Any) -> ListCodec[Any]:
        """Return the exchange codec of this stream's values."""
        return self._sent(self._type if values is None else values)

    def _sent(self, tp: Any) -> ListCodec[Any]:
        """Return the codec for values of a type between subtasks; for None, one that accepts values without a
        declared type."""
        return call_quoting_user(lambda: exchange_codec(tp))

    def _rows(
        self,
        aggregates: Sequence[Aggregate[Any, Any, Any]],
        named: Mapping[str, Aggregate[Any, Any, Any]],
        out: type[Any] | None,
        key: str,
        *numbers: str,
    ) -> tuple[CompositeAggregate, ResultRowBuilder]:
        """Build the aggregates of a keyed stream, and their result rows: the key first, then the results."""

        _expect_field_names(key, *numbers)

        def made() -> tuple[CompositeAggregate, ResultRowBuilder]:
            parts = CompositeAggregate.of_all(aggregates, named, self._value_type, [key, *numbers])
            of_key = get_return_type(self._draft._key_by(self._node).fn)
            return parts, ResultRowBuilder(parts, {key: of_key, **dict.fromkeys(numbers, int)}, out)

        return call_quoting_user(made)


def _expect_field_names(*fields: object) -> None:
    """Raise PlanError with the user's line if an aggregate has the name of an option: ``key=count()``."""
    for field in fields:
        if not isinstance(field, str):
            options = ", ".join(f"{name}=" for name in ("key", "start", "end")[: len(fields)])
            raise plan_error(f"{options} name fields that rows have anyway; {field!r:.80} needs another name.")
