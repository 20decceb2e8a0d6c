"""Operators whose state goes away: a fold begins anew when its time is up, and nothing is left of the key."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import ProcessContext, ProcessFunction, Ttl, Window, global_, rows
from kafka_eos.errors import ConfigError
from kafka_eos.interfaces import StateDescriptor
from kafka_eos.operators.process import Process, declared
from kafka_eos.schemas import KeyCodec, MsgpackCodec
from kafka_eos.schemas.stored import stored_codec
from tests.examples import examples
from tests.unit.operators.conftest import Bench

HOUR = 3_600_000


def letter(text: str) -> str:
    return text[0]


def number(text: str) -> int:
    return int(text[1:])


def sums(ttl: Ttl | None) -> Any:
    return lambda s: s.key_by(letter).fold(name="sum", init=int, step=lambda acc, t: acc + number(t), ttl=ttl)


def highest(ttl: Ttl | None) -> Any:
    return lambda s: s.map(number).key_by(lambda n: n % 10).reduce(max, name="highest", ttl=ttl)


def stored(bench: Any, operator: str, state: str) -> int:
    """How many rows a state has, expired or not, after a checkpoint."""
    bench.snapshot(operator)
    return len(list(bench.backends[operator]._store.rows(state).scan()))


# ---------------------------------------------------------------- fold, reduce


def test_a_fold_begins_anew_when_its_time_is_up(bench: Any) -> None:
    line = bench.line(sums(Ttl(3600)))
    first = bench.push(line, ["a1", "b1", "a2"])
    bench.now += HOUR - 1
    renewed = bench.push(line, ["a4"])
    bench.now += 1
    second = bench.push(line, ["a8", "b8"])

    assert first.values == [("a", 1), ("b", 1), ("a", 3)]
    assert renewed.values == [("a", 7)]
    assert second.values == [("a", 15), ("b", 8)]


def test_in_event_time_each_record_moves_the_clock_before_it_is_added(bench: Any) -> None:
    line = bench.line(sums(Ttl(10, clock="event")))
    at = bench.now - HOUR
    out = bench.push(line, ["a1", "b1", "a2", "b2", "a4"], [at, at, at + 9_999, at + 10_000, at + 20_000])

    assert out.values == [("a", 1), ("b", 1), ("a", 3), ("b", 2), ("a", 4)]


def test_a_reduce_begins_anew_when_its_time_is_up(bench: Any) -> None:
    line = bench.line(highest(Ttl(3600)))
    assert bench.push(line, ["x31", "x21"]).values == [31, 31]
    bench.now += HOUR

    assert bench.push(line, ["x11"]).values == [11]


@pytest.mark.parametrize("verbs", [sums, highest], ids=["fold", "reduce"])
def test_outputs_of_state_that_expires_have_no_update_number(bench: Any, verbs: Any) -> None:
    assert bench.run(verbs(Ttl(1)), ["a1", "a2"]).updates is None
    assert bench.run(verbs(None), ["a1", "a1"]).updates == [1, 2]


def test_a_fold_that_has_expired_leaves_no_row(bench: Any) -> None:
    line = bench.line(sums(Ttl(3600)))
    bench.push(line, [f"{chr(97 + n)}1" for n in range(26)])
    assert stored(bench, "sum", "accumulator") == 26
    bench.now += HOUR

    assert stored(bench, "sum", "accumulator") == 0


def test_a_time_to_live_is_switched_on_over_what_is_stored(bench: Any) -> None:
    bench.push(bench.line(sums(None)), ["a1", "a2"])
    line = bench.line(sums(Ttl(3600)), [bench.snapshot("sum")])
    assert bench.push(line, ["a4"]).values == [("a", 7)]
    bench.now += HOUR

    assert bench.push(line, ["a8"]).values == [("a", 8)]


def test_a_refused_record_does_not_renew_a_key(bench: Any) -> None:
    line = bench.line(sums(Ttl(3600)))
    bench.push(line, ["a1"])
    bench.now += HOUR - 1
    bench.push(line, ["ax"])
    bench.now += 1

    assert bench.push(line, ["a2"]).values == [("a", 2)]


# ---------------------------------------------------------------- process


class Once(ProcessFunction[str, str, str]):
    """A text is let through once an hour."""

    def open(self, ctx: ProcessContext) -> None:
        self.seen = ctx.value_state("seen", bool, ttl=Ttl(3600))

    def process(self, key: str, value: str) -> Iterable[str]:
        if not self.seen.get():
            self.seen.put(True)
            yield value


def once(stream: Any) -> Any:
    return stream.key_by(lambda text: text).process(Once, name="once")


def test_nothing_is_left_of_keys_whose_state_has_expired(bench: Any) -> None:
    line = bench.line(once)
    texts = [f"text-{n}" for n in range(1000)]
    assert bench.push(line, texts * 2).values == texts
    assert stored(bench, "once", "seen") == 1000
    bench.now += HOUR

    assert stored(bench, "once", "seen") == 0
    assert {state["name"] for state in bench.snapshot("once").states} == {"seen"}
    assert sum(file.size > 1000 for file in bench.snapshot("once").files) == 0


def test_the_counts_that_checkpoints_still_hold_are_dropped(bench: Any) -> None:
    bench.push(bench.line(once), ["a"])
    counts = StateDescriptor("updates", KeyCodec(), MsgpackCodec[int](int))
    bench.backends["once"].value(counts).put("a", 1)
    before = bench.snapshot("once")
    assert {state["name"] for state in before.states} == {"seen", "updates"}

    line = bench.line(once, [before])
    after = bench.snapshot("once")

    assert bench.push(line, ["a", "b"]).values == ["b"]
    assert {state["name"] for state in after.states} == {"seen"}
    assert [file.name for file in after.files] == ["seen.rows"]


def test_a_process_behind_a_fold_does_not_pass_on_the_numbers_of_that(bench: Any) -> None:
    class Both(ProcessFunction[str, Any, Any]):
        def process(self, key: str, value: Any) -> Iterable[Any]:
            return [value]

    out = bench.run(lambda s: sums(None)(s).key_by(lambda pair: "all").process(Both, name="both"), ["a1", "b1"])

    assert (out.values, out.updates) == ([("a", 1), ("b", 1)], None)


def test_what_a_function_declares_is_known_without_a_record() -> None:
    (state,) = declared(Process(Once, KeyCodec(), ("process",)))

    assert (state.name, state.ttl) == ("seen", Ttl(3600))


# ---------------------------------------------------------------- windows of rows


def adding(acc: int, text: str) -> int:
    return acc + number(text)


def ended(key: str, window: Window, acc: int) -> tuple[str, int, int, int]:
    return key, window.start, window.end, acc


def windows(assigner: Any, ttl: Ttl | None) -> Any:
    """Sums, with the window that each is of."""

    def verbs(stream: Any) -> Any:
        by_letter = stream.key_by(letter).window(assigner, ttl=ttl)
        return by_letter.fold(name="sums", init=int, step=adding, merge=int.__add__, emit=ended)

    return verbs


@pytest.mark.parametrize(
    ("assigner", "before", "after"),
    [
        (rows(3), [("a", 0, 3, 7)], [("a", 0, 3, 0o70)]),
        (rows(3, every=1), [("a", 0, 1, 1), ("a", 0, 2, 3), ("a", 0, 3, 7)], [
            ("a", 0, 1, 0o10), ("a", 0, 2, 0o30), ("a", 0, 3, 0o70),
        ]),
        (global_(every=3), [("a", 0, 3, 7)], [("a", 0, 3, 0o70)]),
    ],
)  # fmt: skip
def test_windows_of_rows_of_a_key_that_has_expired_begin_anew(
    bench: Any, assigner: Any, before: Any, after: Any
) -> None:
    line = bench.line(windows(assigner, Ttl(3600)))
    alive = bench.push(line, ["a1", "a2", "a4"])
    bench.push(line, ["a8", "a16"] if assigner == rows(3) else [])
    bench.now += HOUR

    assert alive.values == before
    assert bench.push(line, ["a8", "a16", "a32"]).values == after


def test_rows_of_a_window_expire_together_or_not_at_all(bench: Any) -> None:
    """The first row is older than the time to live, but its key is not."""
    line = bench.line(windows(rows(4, every=2), Ttl(3600)))
    found = []
    for text in ("a1", "a2", "a4", "a8"):
        found += bench.push(line, [text]).values
        bench.now += HOUR - 1

    assert found == [("a", 0, 2, 3), ("a", 0, 4, 15)]


def test_in_event_time_windows_of_rows_end_by_the_times_of_records(bench: Any) -> None:
    line = bench.line(windows(rows(2), Ttl(10, clock="event")))
    at = bench.now - HOUR

    out = bench.push(line, ["a1", "b1", "a2", "b2", "b4"], [at, at, at + 9_999, at + 10_000, at + 19_999])

    assert out.values == [("a", 0, 2, 3), ("b", 0, 2, 6)]


def test_windows_of_rows_that_have_expired_leave_no_row(bench: Any) -> None:
    line = bench.line(windows(rows(9, every=3), Ttl(3600)))
    bench.push(line, [f"{chr(97 + n % 26)}1" for n in range(26 * 5)])
    assert stored(bench, "sums", "windows") == 26
    bench.now += HOUR

    assert stored(bench, "sums", "windows") == 0


def test_a_full_window_leaves_no_row_with_a_time_to_live_either(bench: Any) -> None:
    bench.push(bench.line(windows(rows(2), Ttl(3600))), ["a1", "a2", "b1"])

    assert stored(bench, "sums", "windows") == 1


@pytest.mark.parametrize(("before", "after"), [(None, Ttl(3600)), (Ttl(3600), None)])
def test_a_time_to_live_of_windows_of_rows_is_not_switched_under_what_is_stored(
    bench: Any, before: Ttl | None, after: Ttl | None
) -> None:
    bench.push(bench.line(windows(rows(3), before)), ["a1"])

    with pytest.raises(ConfigError, match="state 'windows' of operator 'sums' .*whether windows of rows have a ttl="):
        bench.line(windows(rows(3), after), [bench.snapshot("sums")])


def test_what_windows_of_rows_hold_with_a_time_to_live_is_read_without_the_program(bench: Any) -> None:
    bench.push(bench.line(windows(rows(4, every=2), Ttl(3600))), ["a1", "a2", "a4"])
    (state,) = bench.snapshot("sums").states
    name, schema = state["value"]["name"], state["value"]["schema"]
    codec = stored_codec(name, schema)
    held = {"updates": 3, "accumulator": {0: 3, 2: 4}}

    assert (name, codec.decode(codec.encode(held))) == ("counted-row-panes-msgpack", held)


@given(
    texts=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8)), max_size=30),
    size=st.integers(1, 4),
    every=st.integers(1, 4),
    restart=st.integers(0, 30),
)
@examples(40)
def test_windows_of_rows_hold_rows_since_the_key_began_anew(
    texts: list[tuple[str, int]], size: int, every: int, restart: int
) -> None:
    """Each row comes so many seconds behind the one before it, of whatever key."""
    every = min(size, every)
    made: list[Any] = []
    with TemporaryDirectory() as directory, ExitStack() as closing:
        bench = Bench(Path(directory), closing)
        verbs = windows(rows(size, every=every), Ttl(10))
        line = bench.line(verbs)
        for n, (key, later) in enumerate(texts):
            bench.now += later * 1000
            made += bench.push(line, [f"{key}{1 << n}"]).values
            if n == restart:
                line = bench.line(verbs, [bench.snapshot("sums")])

    expected, held, last, now = [], dict[str, list[int]](), dict[str, int](), 0
    for n, (key, later) in enumerate(texts):
        now += later
        if now - last.get(key, now) >= 10:
            held.pop(key)
        held.setdefault(key, []).append(1 << n)
        last[key] = now
        if (end := len(held[key])) % every == 0:
            expected.append((key, max(0, end - size), end, sum(held[key][-size:])))
            if every == size:
                held.pop(key)
                last.pop(key)
    assert made == expected
