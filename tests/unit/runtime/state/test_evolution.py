"""What happens when the job declares another state than the one that is stored; for every kind of state."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel
from state_codecs import KEY, JsonText
from state_world import World, snapshot

from kafka_eos.abc.state import StateDescriptor, Ttl
from kafka_eos.codecs import AvroCodec, CountedCodec, KeyCodec
from kafka_eos.core.errors import ConfigError
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.schema_evolution import describe
from kafka_eos.savepoints.compatibility import compare_state
from kafka_eos.savepoints.snapshot import descriptor_of


def model(**fields: Any) -> Any:
    """A pydantic model named Item, as another release of a job would declare it."""
    annotations = {name: tp if not isinstance(tp, tuple) else tp[0] for name, tp in fields.items()}
    defaults = {name: tp[1] for name, tp in fields.items() if isinstance(tp, tuple)}
    return type("Item", (BaseModel,), {"__annotations__": annotations, "__module__": __name__, **defaults})


OLD = model(count=int, note=str)
NEWER = model(count=float, label=(str, "none"))
"""A promotion, a removed field, and a new one with a default."""
INCOMPATIBLE = model(count=int, must=str)

KINDS: dict[str, dict[str, Any]] = {
    "value": {},
    "reducing": {"kind": "reducing"},
    "aggregating": {"kind": "aggregating"},
    "map": {"kind": "map", "entry": KEY},
    "list": {"kind": "list", "entry": ElementNumberCodec()},
    "value with namespace": {"namespace": KEY},
    "value with ttl": {"ttl": Ttl(1000)},
    "list with ttl": {"kind": "list", "entry": ElementNumberCodec(), "ttl": Ttl(1000, clock="event")},
    "map with all": {"kind": "map", "namespace": KEY, "entry": KEY, "ttl": Ttl(1000)},
}


def descriptor(kind: str, codec: Any) -> StateDescriptor[Any]:
    return StateDescriptor("state", KEY, codec, **KINDS[kind])


def place(of: StateDescriptor[Any], key: str) -> Any:
    rest = [0] * sum(codec is not None for codec in (of.namespace, of.entry))
    return (key, *rest) if rest else key


@pytest.mark.parametrize("kind", KINDS)
def test_avro_values_are_resolved_in_every_kind_of_state(world: World, kind: str) -> None:
    old, newer = descriptor(kind, AvroCodec(OLD)), descriptor(kind, AvroCodec(NEWER))
    backend = world.open()
    backend.value(old).put(place(old, "k"), OLD(count=3, note="gone"))
    upgraded = world.open([snapshot(world, backend)])
    state = upgraded.value(newer)

    assert state.get(place(newer, "k")) == NEWER(count=3.0, label="none")

    state.put(place(newer, "new"), NEWER(count=0.5, label="x"))
    again = world.open([snapshot(world, upgraded)])

    assert {value.label for _, value in again.value(newer).items()} == {"none", "x"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_resolved_is_refused_with_both_schemas(world: World, kind: str) -> None:
    old, newer = descriptor(kind, AvroCodec(OLD)), descriptor(kind, AvroCodec(INCOMPATIBLE))
    backend = world.open()
    backend.value(old).put(place(old, "k"), OLD(count=3, note="x"))
    restored = world.open([snapshot(world, backend)])
    with pytest.raises(ConfigError, match=r"state 'state' of operator 'total'.*'note'.*'must'"):
        restored.value(newer)


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (AvroCodec(OLD), AvroCodec(NEWER), None),
        (AvroCodec(OLD), AvroCodec(INCOMPATIBLE), "must"),
        (JsonText("value"), JsonText("value"), None),
        (JsonText("value"), JsonText("another value"), "cannot read data of another schema"),
        (JsonText("value"), AvroCodec(OLD), "'avro' reads no other codec's values"),
        (AvroCodec(OLD), CountedCodec(AvroCodec(OLD)), "reads no other codec's values"),
    ],
)
def test_a_comparison_before_the_start_refuses_what_the_state_would_refuse(
    before: Any, now: Any, why: str | None
) -> None:
    stored, declared = (StateDescriptor("state", KEY, codec) for codec in (before, now))

    found = compare_state("app", declared, describe(stored))

    assert bool(found.problems) == (why is not None)
    assert why is None or why in "; ".join(found.problems)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "reducing"},
        {"namespace": KEY},
        {"kind": "map", "entry": KEY},
        {"key": JsonText("another key")},
        {"value": JsonText("another value")},
    ],
)
def test_other_changes_are_refused_and_what_differs_is_shown(world: World, change: dict[str, Any]) -> None:
    before: StateDescriptor[Any] = StateDescriptor("state", KEY, JsonText("value"))
    backend = world.open()
    backend.value(before).put("k", 1)
    restored = world.open([snapshot(world, backend)])
    with pytest.raises(ConfigError) as refused:
        restored.value(replace(before, **change))

    stored, declared = describe(before), describe(replace(before, **change))
    said = str(refused.value)
    for part in stored | declared:
        shown = f"{part}: stored " in said
        assert shown == (stored.get(part) != declared.get(part))


def test_of_a_schema_only_the_fields_that_differ_are_shown(world: World) -> None:
    backend = world.open()
    backend.value(descriptor("value", AvroCodec(OLD))).put("k", OLD(count=3, note="gone"))
    restored = world.open([snapshot(world, backend)])

    with pytest.raises(ConfigError) as refused:
        restored.value(descriptor("value", AvroCodec(INCOMPATIBLE)))

    said = str(refused.value)
    assert "value.note: stored {'name': 'note', 'type': 'string'}, declared nothing" in said
    assert "value.must: stored nothing, declared {'name': 'must', 'type': 'string'}" in said
    assert "value.count" not in said and "fields" not in said
    assert "Declare the old one" in said


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"a": ["null", "int"]}, {"a": ["null"]}, "value.a: stored ['null', 'int'], declared ['null']"),
        ({"a": [{"name": "x", "n": 1}]}, {"a": [{"name": "x", "n": 2}]}, "value.a.x.n: stored 1, declared 2"),
        ({"a": [{"name": 1}]}, {"a": [{"name": 2}]}, "value.a: stored [{'name': 1}], declared [{'name': 2}]"),
        ({"a": "", "b": 1}, {"a": "x", "b": 1}, 'value.a: stored "", declared x'),
    ],
)
def test_parts_with_names_are_compared_by_these_and_all_others_are_shown_whole(
    world: World, before: Any, now: Any, said: str
) -> None:
    backend = world.open()
    backend.value(descriptor("value", JsonText(before))).put("k", 1)
    restored = world.open([snapshot(world, backend)])

    with pytest.raises(ConfigError) as refused:
        restored.value(descriptor("value", JsonText(now)))

    assert f" declares: {said}" in str(refused.value)


@pytest.mark.parametrize("now", [{"size": 20}, None])
def test_rows_that_are_held_for_another_definition_are_refused(world: World, now: Any) -> None:
    before = replace(descriptor("map", JsonText("v")), definition={"size": 10})
    backend = world.open()
    backend.value(before).put(("k", 0), 1)
    handle = snapshot(world, backend)
    assert world.open([handle]).value(before).get(("k", 0)) == 1

    with pytest.raises(
        ConfigError,
        match=r"state 'state' of operator 'total' was stored with another definition .*10.* give the operator",
    ):
        world.open([handle]).value(replace(before, definition=now))


def test_rows_that_were_stored_without_a_definition_have_that_of_the_job_from_then_on(world: World) -> None:
    before = descriptor("map", JsonText("v"))
    backend = world.open()
    backend.value(before).put(("k", 0), 1)
    restored = world.open([snapshot(world, backend)])

    assert restored.value(replace(before, definition={"size": 10})).get(("k", 0)) == 1
    assert snapshot(world, restored).states[0]["definition"] == {"size": 10}


def test_the_codec_of_entries_is_part_of_the_format(world: World) -> None:
    before: StateDescriptor[Any] = StateDescriptor("state", KEY, KEY, "map", entry=KEY)
    backend = world.open()
    backend.value(before).put(("k", 1), 1)
    restored = world.open([snapshot(world, backend)])
    with pytest.raises(ConfigError, match=r"entry.name: stored .*, declared number"):
        restored.value(replace(before, entry=ElementNumberCodec()))


def test_a_time_to_live_and_another_schema_at_once(world: World) -> None:
    old = descriptor("value", CountedCodec(AvroCodec(OLD)))
    newer = replace(descriptor("value", CountedCodec(AvroCodec(NEWER))), ttl=Ttl(1000))
    backend = world.open()
    backend.value(old).put("k", (7, OLD(count=3, note="x")))
    state = world.open([snapshot(world, backend)]).value(newer)

    assert state.get("k") == (7, NEWER(count=3.0, label="none"))


def test_a_value_state_is_described_and_stored_for_ever_like_this(world: World) -> None:
    """Checkpoints of version 1 hold exactly this."""
    backend = world.open()
    value: StateDescriptor[Any] = StateDescriptor("sum", KEY, JsonText("number"))
    backend.value(value).put("user-1", 42)
    handle = snapshot(world, backend)
    store: Any = world.open([handle])

    assert [dict(state) for state in handle.states] == [
        {
            "name": "sum",
            "key": {"name": "json-text", "schema": "key"},
            "value": {"name": "json-text", "schema": "number"},
        }
    ]
    assert list(store._store.rows("sum").scan()) == [(b'\x00\x57"user-1"', b"42")]


def test_what_else_decides_how_rows_are_read_is_stored() -> None:
    state = replace(descriptor("map with all", JsonText("v")), definition={"kind": "session", "gap": 4})

    assert {k: v for k, v in describe(state).items() if k not in ("name", "key", "value")} == {
        "kind": "map",
        "namespace": {"name": "json-text", "schema": "key"},
        "entry": {"name": "json-text", "schema": "key"},
        "ttl": {"seconds": 1000, "clock": "processing", "refresh": "write"},
        "definition": {"kind": "session", "gap": 4},
    }


def test_state_that_is_edited_keeps_its_definition() -> None:
    of_windows: StateDescriptor[Any] = StateDescriptor("windows", KeyCodec(), KeyCodec(), definition={"size": 10})

    assert describe(descriptor_of(describe(of_windows))) == describe(of_windows)


ITEMS: StateDescriptor[Any] = StateDescriptor("state", KEY, AvroCodec(OLD), "map", entry=KEY, definition={"size": 10})
"""A state of which every part is described."""


@pytest.mark.parametrize(
    ("change", "differences", "problems"),
    [
        ({}, [], []),
        (
            {"value": AvroCodec(NEWER)},
            [
                "value: count is long there, double here",
                "value: note (string) is only there",
                "value: label (string) is only here",
            ],
            [],
        ),
        (
            {"value": AvroCodec(INCOMPATIBLE)},
            ["value: note (string) is only there", "value: must (string) is only here"],
            ["must (string) is only here, and has no default"],
        ),
        ({"key": JsonText("b")}, ["key is json-text key there, json-text b here"], ["key cannot change"]),
        (
            {"kind": "value", "entry": None},
            ["kind is map there, nothing here", "entry is json-text key there, nothing here"],
            ["kind cannot change", "entry cannot change"],
        ),
        (
            {"definition": {"size": 20}},
            ["definition is {'size': 10} there, {'size': 20} here"],
            ["it was stored for another definition"],
        ),
    ],
)
def test_a_comparison_names_each_part_that_differs_and_each_reason(
    change: dict[str, Any], differences: list[str], problems: list[str]
) -> None:
    found = compare_state("app", replace(ITEMS, **change), describe(ITEMS))

    assert (found.differences, found.problems) == (differences, problems)


def test_a_value_of_another_codec_is_shown_whole_and_read_by_none() -> None:
    found = compare_state("app", replace(ITEMS, value=JsonText("b")), describe(ITEMS))

    (difference,) = found.differences
    assert difference.startswith("value is avro {'type': 'record'") and difference.endswith(" there, json-text b here")
    assert found.problems == ["'json-text' reads no other codec's values"]
