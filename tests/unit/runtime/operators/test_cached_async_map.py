"""``async_map`` on a stream with keys: one request for a key at a time, and an answer that is kept for a while."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from kafka_eos import OutputTag, Pipeline, PlanError, PoisonRecord, Stream, Ttl
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateBackend, StateHandle
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin
from tests.unused import UNUSED

NEVER = Ttl(3600)
FAILED = OutputTag("failed", int)
KEYS = "abcdefg"
Row = tuple[int, str]


def key_of(value: int) -> str:
    return KEYS[value % len(KEYS)]


def row(value: int, answer: str) -> Row:
    return value, answer


def asking(fn: Callable[[str], Any], pipeline: Pipeline | None = None, **given: Any) -> Stream[Row]:
    """Numbers that ask for their keys."""
    read = (pipeline or Pipeline("p")).source(ListSource([]), name="in", on_error=given.pop("on_error", "stop"))
    keyed = read.key_by(key_of, name="by", values=int)
    return keyed.async_map(fn, given.pop("join", row), **{"name": "ask", "cache": NEVER, **given})


def made(fn: Callable[[str], Any], values: Sequence[Any], batch_size: int = 7, **given: Any) -> Any:
    pipeline = Pipeline("p")
    asking(fn, pipeline, **given).sink(MemorySink(), name="out")
    return run_local(pipeline, {"in": values}, batch_size=batch_size)


# ---------------------------------------------------------------- answers


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_every_value_has_the_answer_for_its_key_and_each_key_is_asked_for_once(
    count: int, capacity: int, batch_size: int, ordered: bool
) -> None:
    asked: Counter[str] = Counter()

    async def ask(key: str) -> str:
        asked[key] += 1
        await asyncio.sleep(random.random() / 1000)
        return key.upper()

    values = list(range(count))
    out = made(ask, values, batch_size, ordered=ordered, capacity=capacity)["out"]

    assert (out if ordered else sorted(out)) == [(value, key_of(value).upper()) for value in values]
    assert asked == Counter(set(map(key_of, values)))


def test_while_a_key_is_asked_for_nobody_asks_again() -> None:
    """Ordinary functions, too: with one thread for each row they would all be called."""
    first, asked = threading.Event(), []

    def ask(key: str) -> str:
        asked.append(key)
        first.wait(0.05)
        return key

    assert made(ask, [0, 7, 14, 21], capacity=4)["out"] == [(0, "a"), (7, "a"), (14, "a"), (21, "a")]
    assert asked == ["a"]


@pytest.mark.parametrize(("ordered", "early"), [(True, []), (False, [(7, "a")])])
def test_a_row_whose_answer_is_kept_goes_before_rows_that_wait_unless_they_are_in_order(
    ordered: bool, early: list[Row]
) -> None:
    let_go = threading.Event()

    def ask(key: str) -> str:
        assert key == "a" or let_go.wait(20)
        return key

    pipeline = Pipeline("p")
    asking(ask, pipeline, ordered=ordered).sink(MemorySink(), name="out")
    out: list[Row] = []
    with closing(chain_of(pipeline, out)) as chain:
        chain.push("in", batch([0]))
        chain.finish()
        chain.push("in", batch([1, 7]))

        assert out == [(0, "a"), *early]
        let_go.set()
        chain.finish()

    assert out == [(0, "a"), *([(1, "b"), (7, "a")] if ordered else [(7, "a"), (1, "b")])]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_answer_that_is_too_old_is_asked_for_again(ordered: bool) -> None:
    answers = iter("xyz")

    async def ask(key: str) -> str:
        return next(answers)

    values = [
        TimestampedValue(0, 10_000),
        TimestampedValue(7, 19_999),
        TimestampedValue(14, 20_000),
        TimestampedValue(21, 29_000),
    ]
    out = made(ask, values, 1, ordered=ordered, cache=Ttl(10, clock="event"), capacity=1)["out"]

    assert out == [(0, "x"), (7, "x"), (14, "y"), (21, "y")]


class Country(BaseModel):
    name: str


def test_that_there_is_nothing_is_an_answer_that_is_kept_too() -> None:
    asked = []

    async def ask(key: str) -> Country | None:
        asked.append(key)
        return None if key == "a" else Country(name=key)

    def named(value: int, country: Country | None) -> Row:
        return value, "none" if country is None else country.name

    assert made(ask, [0, 1, 7, 8], 1, join=named, capacity=1)["out"] == [(0, "none"), (1, "b"), (7, "none"), (8, "b")]
    assert asked == ["a", "b"]


# ---------------------------------------------------------------- what fails


@pytest.mark.parametrize("ordered", [True, False])
def test_all_that_wait_for_one_request_fail_with_it_and_the_next_one_asks_again(ordered: bool) -> None:
    tries = Counter[str]()

    async def ask(key: str) -> str:
        tries[key] += 1
        await asyncio.sleep(0.01)
        if tries[key] == 1:
            raise ValueError(f"nobody knows {key}")
        return key

    out = made(ask, [0, 7, 1, 14], batch_size=3, capacity=3, ordered=ordered, on_error=DeadLetters(MemorySink()))

    assert out["out"] == [(14, "a")]
    assert sorted(letter.raw.offset for letter in out["in-dead-letters"]) == [0, 1, 2]
    with pytest.raises(PoisonRecord, match="'ask'.*nobody knows c"):
        made(ask, [2])


def test_values_without_an_answer_go_to_the_side_output() -> None:
    async def ask(key: str) -> str:
        raise ValueError("never")

    pipeline = Pipeline("p")
    answered = asking(ask, pipeline, failed=FAILED)
    answered.sink(MemorySink(), name="out")
    answered.side_output(FAILED).sink(MemorySink(), name="failed")

    assert run_local(pipeline, {"in": [1, 2, 8]}) == {"out": [], "failed": [1, 2, 8]}


def test_what_join_raises_refuses_its_value_alone() -> None:
    async def ask(key: str) -> str:
        return key

    def odd(value: int, answer: str) -> Row:
        if value == 7:
            raise ValueError("no seven")
        return value, answer

    found = made(ask, [0, 7, 14], join=odd, failed=None, on_error=DeadLetters(MemorySink()))

    assert found["out"] == [(0, "a"), (14, "a")]
    assert [(letter.raw.offset, letter.message) for letter in found["in-dead-letters"]] == [(1, "no seven")]


def test_answers_that_cannot_be_stored_are_refused_at_the_first_one() -> None:
    async def ask(key: str):  # type: ignore[no-untyped-def]
        return {1, 2}

    with pytest.raises(PoisonRecord, match="its answers cannot be stored.*state="):
        made(ask, [1])


# ---------------------------------------------------------------- as an engine sees it


def test_rows_that_wait_find_in_a_snapshot_what_was_known_then() -> None:
    """One of them waits in order behind a request, and its own answer is in the state already."""
    asked: list[str] = []
    let_go = threading.Event()

    def ask(key: str) -> str:
        asked.append(key)
        assert key == "b" or let_go.wait(20)
        return key.upper()

    pipeline, storage = Pipeline("p"), MemoryStorage()
    asking(ask, pipeline).sink(MemorySink(), name="out")
    out: list[Row] = []
    before = open_backend("memory", "ask", UNUSED, range(MAX_KEY_GROUPS), (), storage)
    with closing(chain_of(pipeline, out, before)) as chain:
        chain.push("in", batch([0, 1]))
        while not before.cache().entries:
            chain.emit_answered()
        held = chain.list_pending_rows("ask-requests")
        handle = before.snapshot(Epoch(1))(storage)
        assert (out, [each.values for each in held]) == ([], [[0, 1]])

        let_go.set()
        asked.clear()
        after = open_backend("memory", "ask", UNUSED, range(MAX_KEY_GROUPS), [handle], storage)
        with closing(chain_of(pipeline, out, after)) as again:
            for each in held:
                again.push("ask-requests", each)
            again.finish()

    assert (out, asked) == ([(0, "A"), (1, "B")], ["a"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["push", "push", "collect", "checkpoint", "die"]), max_size=25), st.booleans())
def test_each_value_comes_out_once_whenever_the_job_dies(steps: list[str], ordered: bool) -> None:
    """A checkpoint has the state, the rows that wait, and how far was read and written: all goes back to it."""
    pipeline, storage = Pipeline("p"), MemoryStorage()
    asking(said_later, pipeline, ordered=ordered, capacity=5).sink(MemorySink(), name="out")
    out: list[Row] = []
    read, epoch, held, taken, handles = 0, 0, list[Batch[int]](), (0, 0), list[StateHandle]()

    def begun() -> tuple[OperatorChain, StateBackend]:
        state = open_backend("memory", "ask", UNUSED, range(MAX_KEY_GROUPS), handles, storage)
        chain = chain_of(pipeline, out, state)
        for each in held:
            chain.push("ask-requests", each)
        return chain, state

    chain, state = begun()
    for step in [*steps, "die", "push"]:
        if step == "push":
            chain.push("in", batch(list(range(read, read + 3))))
            read += 3
        elif step == "collect":
            chain.emit_answered()
        elif step == "checkpoint":
            epoch += 1
            handles, held, taken = (
                [state.snapshot(Epoch(epoch))(storage)],
                chain.list_pending_rows("ask-requests"),
                (read, len(out)),
            )
        else:
            chain.close()
            read, written = taken
            del out[written:]
            chain, state = begun()
    chain.finish()
    chain.close()

    wanted = [(value, key_of(value).upper()) for value in range(read)]
    assert (out if ordered else sorted(out)) == wanted


async def said_later(key: str) -> str:
    await asyncio.sleep(random.random() / 2000)
    return key.upper()


def test_rows_that_an_async_map_without_keys_has_left_are_not_lost_in_silence() -> None:
    pipeline = Pipeline("p")
    asking(str.upper, pipeline).sink(MemorySink(), name="out")
    with closing(chain_of(pipeline, [])) as chain, pytest.raises(PlanError, match="rows without a key.*has stopped"):
        chain.push("ask-requests", batch([1]))


def batch(values: list[int]) -> Batch[int]:
    return Batch(values, range(len(values)), ListOrigin("in", "in", 0, 0, values, [-1] * len(values)))


def chain_of(pipeline: Pipeline, out: list[Row], backend: StateBackend | None = None) -> OperatorChain:
    state = backend or open_backend("memory", "ask", UNUSED, range(MAX_KEY_GROUPS), (), MemoryStorage())
    return OperatorChain(pipeline.plan(), {"ask": state}, {"out": lambda written: out.extend(written.values)})


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cache": 60}, r"cache must be a Ttl\(seconds\), .*not 60"),
        ({"capacity": 0}, "capacity must be a whole number of at least 1"),
        ({"state": dict[int, str]}, "keys of a dict must be str"),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_verb(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says) as refused:
        asking(str.upper, **given)

    assert "test_cached_async_map.py" in str(refused.value)


def test_keys_that_stay_in_their_worker_are_refused() -> None:
    keyed = Pipeline("p").source(ListSource([]), name="in").key_by(key_of, name="by", local=True)
    with pytest.raises(PlanError, match="'by' is local=True.*Omit local=True"):
        keyed.async_map(str.upper, row, name="ask", cache=NEVER)


def test_nobody_would_await_a_join_that_is_a_coroutine_function() -> None:
    async def joined(value: int, answer: str) -> Row:
        return value, answer

    with pytest.raises(PlanError, match="join of async_map is a coroutine function"):
        asking(str.upper, join=joined)


def test_a_stream_without_keys_has_no_answers_to_keep() -> None:
    read = Pipeline("p").source(ListSource([]), name="in")
    with pytest.raises(TypeError, match="cache"):
        read.async_map(str.upper, name="ask", cache=NEVER)  # type: ignore[call-overload]
