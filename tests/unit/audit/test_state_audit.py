"""What of stored state is compared with what the input makes, what is not and why, and how a difference is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kafka_eos import Pipeline, ProcessFunction, Ttl
from kafka_eos.abc.state import StateDescriptor, StateHandle
from kafka_eos.audit.facts.code_changes import OtherCode
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.audit.state.difference_text import MISSING, UNEXPECTED, WRONG, _State
from kafka_eos.audit.state.state_rows import Form
from kafka_eos.audit.state.uncertain_state import Doubts, declared, doubts, stored
from kafka_eos.audit.tables.plan_cut import cut
from kafka_eos.codecs import CountedCodec, JsonCodec, KeyCodec, MsgpackCodec, state_codec
from kafka_eos.connectors.kafka import Record
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.plan import Plan
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.local_keys import LOCAL
from kafka_eos.runtime.state.schema_evolution import ATTRIBUTES, describe
from kafka_eos.storage.epoch_ledger import LedgerEntry, StateDigest
from kafka_eos.testing import ListSource, MemorySink

NUMBER = MsgpackCodec(int)
KEY = KeyCodec().encode("ann")


class Lists(ProcessFunction[str, str, str]):
    def open(self, ctx: Any) -> None:
        self.words = ctx.list_state("words", str)
        self.gone = ctx.value_state("gone", int, ttl=Ttl(5))

    def process(self, key: str, value: str) -> Any:
        yield value


def keyed(pipeline: Pipeline, **how: Any) -> Any:
    return pipeline.source(ListSource(["a"]), name="words").key_by(lambda word: word, **how)


def counted(stream: Any, name: str, **how: Any) -> Any:
    return stream.fold(name=name, init=lambda: 0, step=lambda n, _: n + 1, state=int, **how)


def plan_of(*operators: str, **how: Any) -> Plan:
    """Folds side by side."""
    pipeline = Pipeline("job")
    words = keyed(pipeline, **how)
    for name in operators:
        counted(words, name).sink(MemorySink(), name=f"{name}-out")
    return pipeline.plan()


def handles(plan: Plan, *, local: bool = False) -> tuple[StateHandle, ...]:
    """State of all operators as the plan stores it."""
    found: dict[str, list[Any]] = {}
    for (operator, _), descriptor in declared(plan).items():
        found.setdefault(operator, []).append(describe(descriptor) | ({ATTRIBUTES: {LOCAL: 1}} if local else {}))
    return tuple(StateHandle(name, "memory", (0, 127), (), tuple(states)) for name, states in found.items())


def ledger(*epochs: tuple[int, str]) -> Ledger:
    """Of these epochs, each with the operators (single letters) that had state."""
    entries = {
        EpochId(Epoch(n), Term(1)): LedgerEntry(
            EpochId(Epoch(n), Term(1)),
            0,
            "",
            1,
            False,
            {},
            {},
            0,
            {},
            {o: (StateDigest(0, 127, "", ""),) for o in operators},
        )
        for n, operators in epochs
    }
    return Ledger(frozenset({"job"}), None, None, {}, None, frozenset(), {}, entries)


def of(plan: Plan, given: tuple[StateHandle, ...] | None = None, *, several: bool = False, **how: Any) -> Doubts:
    return doubts(cut(plan, how.pop("workers", 1)), how.pop("ledger", ledger()), given or handles(plan), several)


def test_plain_state_is_compared() -> None:
    assert of(plan_of("a", "b")) == Doubts({}, {})


def test_of_state_that_other_code_has_changed_a_difference_proves_nothing() -> None:
    other = OtherCode(EpochId(Epoch(7), Term(1)), {})

    found = doubts(cut(plan_of("a", "b"), 1), ledger(), handles(plan_of("a", "b")), False, other)

    why = "other code than the audit has loaded processed the input up to epoch 7"
    assert found == Doubts({}, {"a": why, "b": why})


def test_what_a_join_keeps_of_a_table_is_compared() -> None:
    pipeline = Pipeline("job")
    rates: Any = pipeline.table(ListSource([]), name="rates", values=Record[str, int])
    keyed(pipeline).join(rates, lambda word, rate: (word, rate), name="rated").sink(MemorySink(), name="out")
    plan = pipeline.plan()
    (kept,) = handles(plan)

    assert [state["definition"] for state in kept.states] == [{"table": "rates"}]
    assert of(plan).blind == {}
    other = (replace(kept, states=({**kept.states[0], "definition": {"table": "prices"}},)),)
    assert of(plan, other).blind["rated", "table"].startswith("it was stored for other windows, or another join")


def test_answers_that_are_kept_are_named_and_not_compared() -> None:
    """No service is asked for the same again. State beside it is compared."""
    pipeline = Pipeline("job")
    words = keyed(pipeline)
    words.async_map(str.upper, lambda word, answer: answer, name="asked", cache=Ttl(60)).sink(MemorySink(), name="out")
    counted(words, "beside").sink(MemorySink(), name="beside-out")
    plan = pipeline.plan()
    kept = StateHandle("asked", "memory", (0, 127), (), (describe(StateDescriptor("answers", KeyCodec(), NUMBER)),))

    found = of(plan, (*handles(plan), kept))

    why = "the requests to a service cannot be repeated: async_map"
    assert (found.blind, found.unsure) == ({("asked", "answers"): why}, {})


def test_state_with_a_time_to_live_is_not_compared_and_nothing_is_known_of_what_depends_on_it() -> None:
    pipeline = Pipeline("job")
    lists = keyed(pipeline).process(Lists, name="lists")
    counted(lists.key_by(lambda word: word), "behind").sink(MemorySink(), name="out")
    found = of(pipeline.plan())

    assert {*found.blind} == {("lists", "gone")}
    assert {*found.unsure} == {"lists", "behind"}


def test_state_behind_a_fold_with_merge_depends_on_epochs_and_its_own_does_not() -> None:
    pipeline = Pipeline("job")
    sums = counted(keyed(pipeline), "sums", merge=lambda a, b: a + b)
    counted(sums.key_by(lambda pair: pair[0]), "behind").sink(MemorySink(), name="out")
    found = of(pipeline.plan())

    assert {**found.blind} == {}
    assert [*found.unsure] == ["behind"]
    assert "merge=" in found.unsure["behind"]


def test_what_the_code_does_not_declare_as_it_is_stored_is_not_compared() -> None:
    plan = plan_of("a")
    (mine,) = handles(plan)
    key = {"name": "key", "schema": None}
    text, old = {"name": "utf-8", "schema": None}, {"name": "left", "key": key, "value": describe(_value())["value"]}
    given = (
        replace(mine, states=({**mine.states[0], "value": text}, old)),
        replace(mine, operator="gone"),
    )

    assert {name: why.split(":")[0].split(" (")[0] for name, why in of(plan, given).blind.items()} == {
        ("a", "accumulator"): "the code cannot read what is stored",
        ("a", "left"): "the operator does not declare it any more",
        ("gone", "accumulator"): "the plan has no such operator",
    }
    other_key = (replace(mine, states=({**mine.states[0], "key": text},)),)
    assert of(plan, other_key).blind["a", "accumulator"].startswith("it was stored in another form")
    other_windows = (replace(mine, states=({**mine.states[0], "definition": {"kind": "session", "gap": 1}},)),)
    assert of(plan, other_windows).blind["a", "accumulator"].startswith("it was stored for other windows")


def test_local_state_is_not_compared() -> None:
    plan = plan_of("a")

    assert [*of(plan, handles(plan, local=True)).blind] == [("a", "accumulator")]
    assert [*of(plan_of("a", local=True)).blind] == [("a", "accumulator")]


def test_an_operator_that_came_later_than_the_job_has_not_seen_all_input() -> None:
    plan = plan_of("a", "b")
    later = ledger((0, ""), (1, "a"), (2, "a"), (3, "ab"))

    assert {name: why.split(",")[0] for name, why in of(plan, ledger=later).unsure.items()} == {
        "b": "the operator was added in epoch 3"
    }
    assert of(plan, ledger=ledger((0, ""), (1, "ab"))).unsure == {}


def test_without_an_order_nothing_is_known_of_a_plan_that_runs_in_one_task() -> None:
    pipeline = Pipeline("job")
    first = counted(keyed(pipeline), "first")
    counted(first.key_by(lambda pair: pair[1]), "second").sink(MemorySink(), name="out")
    plan = pipeline.plan()

    assert [{*of(plan, several=several).unsure} for several in (False, True)] == [set(), {"first", "second"}]


# ---------------------------------------------------------------- rows and words


def _value(kind: Any = "value", **parts: Any) -> StateDescriptor[Any]:
    return StateDescriptor("state", KeyCodec(), NUMBER, kind, **parts)


def test_elements_of_lists_are_numbered_anew_and_updates_of_merging_folds_do_not_count() -> None:
    form = Form(frozenset(), frozenset({"merging"}))
    list_ = describe(_value("list", entry=ElementNumberCodec()))
    elements = [(of + ElementNumberCodec().encode(n), b"") for of, n in ((b"a", 3), (b"a", 7), (b"b", 4))]

    renumbered = [row[0] for row in form.comparable("any", list_, elements)]
    assert renumbered == [of + ElementNumberCodec().encode(n) for of, n in ((b"a", 0), (b"a", 1), (b"b", 0))]
    entry = CountedCodec(NUMBER)
    (row,) = form.comparable("merging", describe(_value()), [(b"k", entry.encode((7, 5)))])
    assert entry.decode(row[1]) == (0, 5)
    assert [*form.comparable("other", describe(_value()), [row])] == [row]


def told(descriptor: StateDescriptor[Any], value: bytes | None, made: bytes | None, place: bytes = KEY) -> Any:
    return _State(descriptor, None, merged=False).difference(place, value, made, astray=False)


def test_a_difference_is_told_with_its_key() -> None:
    one, two = NUMBER.encode(1), NUMBER.encode(2)

    assert told(_value(), one, two) == (WRONG, "key 'ann' is 1: expected 2")
    assert told(_value(), None, two) == (MISSING, "key 'ann' is missing: expected 2")
    assert told(_value(), one, None) == (UNEXPECTED, "key 'ann' is unexpected: 1")
    assert told(_value(), b"\xc1", two)[1].startswith("key 'ann' cannot be read (")
    assert told(_value(), one, two, b"\xff\xff")[1].startswith("the row b'\\xff\\xff', whose key cannot be read (")
    counts = StateDescriptor("state", KeyCodec(), CountedCodec(NUMBER))
    entries = (CountedCodec(NUMBER).encode((n, 5)) for n in (3, 4))
    assert told(counts, *entries)[1] == "key 'ann' is 5 after 3 updates: expected 5 after 4 updates"
    astray = _State(_value(), None, merged=False).difference(KEY, one, None, astray=True)
    assert astray == (UNEXPECTED, "key 'ann' is stored with a subtask that does not own it")


@pytest.mark.parametrize(
    ("descriptor", "last", "where"),
    [
        (_value("list", entry=ElementNumberCodec()), ElementNumberCodec().encode(2), "key 'ann', element 2"),
        (_value("map", entry=KeyCodec()), KeyCodec().encode("x"), "key 'ann', entry 'x'"),
        (_value(namespace=KeyCodec()), KeyCodec().encode(7), "key 'ann', namespace 7"),
    ],
)
def test_places_within_a_key_are_named(descriptor: StateDescriptor[Any], last: bytes, where: str) -> None:
    place = bytes([len(KEY)]) + KEY + last

    assert told(descriptor, NUMBER.encode(1), NUMBER.encode(2), place)[1] == f"{where} is 1: expected 2"


def test_values_that_decode_to_the_same_are_the_same() -> None:
    as_json = StateDescriptor("state", KeyCodec(), JsonCodec(dict[str, int]))
    assert told(as_json, b'{"a": 1, "b": 2}', b'{"b":2,"a":1}') is None
    assert told(as_json, b'{"a": 1, "b": 2}', b'{"b":2,"a":3}') is not None


def test_a_value_of_an_older_schema_is_read_as_the_code_of_today_does() -> None:
    class Before(msgspec.Struct):
        total: int

    class Today(msgspec.Struct):
        total: int
        note: str = ""

    before, today = (StateDescriptor("state", KeyCodec(), state_codec(tp)) for tp in (Before, Today))
    state = _State(today, describe(before), merged=False)
    made = [today.value.encode(Today(n)) for n in (1, 2)]

    assert state.difference(KEY, before.value.encode(Before(1)), made[0], astray=False) is None
    assert state.difference(KEY, before.value.encode(Before(1)), made[1], astray=False) is not None


def test_the_last_digits_of_sums_of_parts_may_differ() -> None:
    codec = CountedCodec(MsgpackCodec(dict[str, list[float]]))
    descriptor = StateDescriptor("state", KeyCodec(), codec)
    one, near, other = (codec.encode((0, {"a": [n, 2.0]})) for n in (0.1 + 0.2, 0.3, 0.30001))

    def found(merged: bool, value: bytes) -> Any:
        return _State(descriptor, None, merged=merged).difference(KEY, one, value, astray=False)

    assert (found(True, near), found(True, other), found(False, near)) == (
        None,
        (WRONG, "key 'ann' is {'a': [0.30000000000000004, 2.0]}: expected {'a': [0.30001, 2.0]}"),
        (WRONG, "key 'ann' is {'a': [0.30000000000000004, 2.0]} after 0 updates: expected {'a': [0.3, 2.0]} "
                "after 0 updates"),
    )  # fmt: skip


def test_how_states_are_described_is_taken_without_what_changes_from_epoch_to_epoch() -> None:
    plan = plan_of("a")

    assert stored(handles(plan, local=True)) == stored(handles(plan))
