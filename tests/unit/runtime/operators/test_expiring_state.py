"""Operators whose state goes away: a fold begins anew when its time is up, and nothing is left of the key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kafka_eos import ProcessContext, ProcessFunction, Ttl
from kafka_eos.codecs import KeyCodec
from kafka_eos.runtime.operators.process import ProcessOperator, list_declared_states

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


def test_a_process_behind_a_fold_does_not_pass_on_the_numbers_of_that(bench: Any) -> None:
    class Both(ProcessFunction[str, Any, Any]):
        def process(self, key: str, value: Any) -> Iterable[Any]:
            return [value]

    out = bench.run(lambda s: sums(None)(s).key_by(lambda pair: "all").process(Both, name="both"), ["a1", "b1"])

    assert (out.values, out.updates) == ([("a", 1), ("b", 1)], None)


def test_what_a_function_declares_is_known_without_a_record() -> None:
    (state,) = list_declared_states(ProcessOperator(Once, KeyCodec(), ("process",)))

    assert (state.name, state.ttl) == ("seen", Ttl(3600))


def test_timers_are_among_the_states_that_a_function_declares() -> None:
    class Timed(Once):
        def on_timer(self, key: str, time: int) -> Iterable[Any]:
            return ()

    found = list_declared_states(ProcessOperator(Timed, KeyCodec(), ("process", "on_timer")))

    assert [state.name for state in found] == ["event-timers", "seen"]
