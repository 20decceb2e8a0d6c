"""The pipelines that every engine must run alike. Each function adds one to ``pipeline``; ``at`` names its topics.

Rule: no outputs depend on chance but where ``cases`` says so, and no function here does anything outside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from kafka_eos import (
    BroadcastContext,
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    OutputTag,
    Pattern,
    Pipeline,
    ProcessContext,
    ProcessFunction,
    Stream,
    Ttl,
    Window,
    Windowed,
    agg,
    bounded,
    connect,
    days,
    generated,
    global_,
    monotonic,
    on_clock,
    on_count,
    retries,
    rows,
    session,
    sliding,
    tumbling,
)
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, Record, dead_letter

Names = Mapping[str, str]
Build = Callable[[Pipeline, Names], None]


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int
    rounds: int = 0


class Total(msgspec.Struct):
    key: str
    total: int
    count: int
    id: int


def payments(pipeline: Pipeline, at: Names, topic: str = "input") -> Stream[Payment]:
    return pipeline.source(KafkaSource(at[topic], value=Payment), name=topic)


def to_kafka(stream: Stream[Total], at: Names, topic: str = "output") -> None:
    stream.sink(KafkaSink(at[topic], value=Total, key=lambda total: total.key), name=topic)


def nothing() -> Total:
    return Total("", 0, 0, -1)


def add(total: Total, payment: Payment) -> Total:
    return Total(payment.account, total.total + payment.amount, total.count + 1, payment.id)


def shown(_: str, total: Total) -> Total:
    return total


def account(payment: Payment) -> str:
    return payment.account


def totals(stream: Stream[Payment], name: str = "total") -> Stream[Total]:
    return stream.key_by(account, name=f"by-{name}").fold(name=name, init=nothing, step=add, emit=shown)


def as_total(payment: Payment) -> Total:
    return Total(payment.account, payment.amount, 0, payment.id)


# ---------------------------------------------------------------- without state


def stateless(pipeline: Pipeline, at: Names) -> None:
    """map, filter, flat_map, map_batches; several sinks of two kinds."""
    read = payments(pipeline, at)
    to_kafka(read.filter(lambda p: p.amount % 3 > 0).map(as_total), at)
    to_kafka(read.flat_map(shares).map(as_total), at, "shares")
    to_kafka(read.map_batches(doubled), at, "doubled")
    read.filter(lambda p: p.id % 2 == 0).sink(FileSink(at["files"], value=Payment), name="files")


def shares(payment: Payment) -> Iterable[Payment]:
    """None of some payments, up to three of others, each for an account of its own."""
    return [Payment(payment.id, f"{payment.account}-{n}", n + 1) for n in range(payment.amount % 4)]


def doubled(batch: list[Payment]) -> list[Total]:
    return [Total(p.account, 2 * p.amount, 0, p.id) for p in batch]


def spread(pipeline: Pipeline, at: Names) -> None:
    """rebalance and broadcast."""
    read = payments(pipeline, at)
    to_kafka(read.rebalance(name="spread").flat_map(shares).map(as_total), at)
    to_kafka(read.broadcast(name="everywhere").map(as_total), at, "copies")


def diamond(pipeline: Pipeline, at: Names) -> None:
    """A way with an exchange meets one without."""
    read = payments(pipeline, at)
    to_kafka(read.rebalance(name="over").union(read.map(negative), name="both").map(as_total), at)


def negative(payment: Payment) -> Payment:
    return Payment(payment.id, payment.account, -payment.amount)


# ---------------------------------------------------------------- with state


def keyed(pipeline: Pipeline, at: Names) -> None:
    """flat_map before fold; reduce; process with a value, a map and a list."""
    read = payments(pipeline, at)
    to_kafka(totals(read.flat_map(shares)), at)
    highest = read.key_by(account, name="by-account").reduce(higher, name="highest-so-far", state=Payment)
    to_kafka(highest.map(as_total), at, "highest")
    to_kafka(read.key_by(account, name="by-owner").process(Statement, name="statement"), at, "statements")


def higher(one: Payment, other: Payment) -> Payment:
    return one if one.amount > other.amount else other


class Statement(ProcessFunction[str, Payment, Total]):
    """Every payment gives its number; every fifth one what there was of each amount, and empties the list."""

    def open(self, ctx: ProcessContext) -> None:
        self.seen = ctx.counter("payments")
        self.number = ctx.value_state("number", int, 0)
        self.amounts = ctx.map_state("amounts", int, int)
        self.latest = ctx.list_state("latest", int)

    def process(self, key: str, value: Payment) -> Iterable[Total]:
        self.seen.inc()
        self.number.put(self.number.get() + 1)
        self.amounts.put(value.amount, (self.amounts.get(value.amount) or 0) + 1)
        self.latest.add(value.id)
        yield Total(key, self.number.get(), 0, value.id)
        if self.number.get() % 5 == 0:
            yield from (Total(key, amount, count, value.id) for amount, count in self.amounts.items())
            yield Total(key, sum(self.latest), len(list(self.latest)), value.id)
            self.latest.clear()


def united(pipeline: Pipeline, at: Names) -> None:
    """Two sources that share their keys."""
    to_kafka(totals(payments(pipeline, at).union(payments(pipeline, at, "second"), name="both")), at)


def stages(pipeline: Pipeline, at: Names) -> None:
    """Two keyed stages in a row, the second with fewer keys than the first."""
    first = totals(payments(pipeline, at))
    to_kafka(first, at, "first")
    second = first.key_by(lambda total: f"b{int(total.key[1:]) % 4}", name="by-branch", values=Total)
    to_kafka(second.fold(name="branch", init=nothing, step=by_branch, emit=shown), at)


def by_branch(branch: Total, total: Total) -> Total:
    return Total(f"b{int(total.key[1:]) % 4}", total.total, branch.count + 1, total.id)


def letters(pipeline: Pipeline, at: Names) -> None:
    """Records are refused by the source, before the exchange and behind it."""
    source = KafkaSource(at["input"], value=Payment)
    read = pipeline.source(source, name="input", on_error=dead_letter(at["letters"]))
    once = read.map(refusing, name="before").key_by(account, name="by-account", values=Payment)
    to_kafka(once.fold(name="behind", init=nothing, step=refusing_too, emit=shown), at)


def refusing(payment: Payment) -> Payment:
    if payment.id % 10 == 3:
        raise ValueError("three")
    return payment


def refusing_too(total: Total, payment: Payment) -> Total:
    if payment.id % 10 == 4:
        raise ArithmeticError("four")
    return add(total, payment)


def merged(pipeline: Pipeline, at: Names) -> None:
    """A fold in two phases."""
    by_account = payments(pipeline, at).key_by(account)
    to_kafka(by_account.fold(name="sum", init=nothing, step=counting, merge=together, emit=named), at)


def counting(total: Total, payment: Payment) -> Total:
    return Total("", total.total + payment.amount, total.count + 1, max(total.id, payment.id))


def together(one: Total, other: Total) -> Total:
    return Total("", one.total + other.total, one.count + other.count, max(one.id, other.id))


def named(key: str, total: Total) -> Total:
    return Total(key, total.total, total.count, total.id)


def expiring(pipeline: Pipeline, at: Names) -> None:
    """State of a key that is gone when the key comes again, by either clock, beside state that lasts."""
    read = payments(pipeline, at)
    to_kafka(read.key_by(account, name="by-account").process(Visits, name="visits"), at)
    minute = Ttl(60.0, clock="event")
    folded = read.key_by(account, name="by-owner").fold(name="minute", init=nothing, step=add, emit=shown, ttl=minute)
    to_kafka(folded, at, "minutes")
    highest = read.key_by(account, name="by-holder").reduce(higher, name="instant", state=Payment, ttl=Ttl(0.001))
    to_kafka(highest.map(as_total), at, "highest")
    gathered = read.key_by(account, name="by-branch")
    merged = gathered.fold(name="two-phases", init=nothing, step=counting, merge=together, emit=named, ttl=minute)
    to_kafka(merged, at, "merged")
    by_row = read.key_by(account, name="by-row")
    last_two = by_row.window(rows(2, every=1), ttl=minute).process(in_session, name="last-two", state=Payment)
    ever = by_row.window(global_(every=1), ttl=Ttl(0.001)).fold(name="ever", init=nothing, step=add, state=Total)
    to_kafka(last_two.union(ever.map(end_of, name="ever-ends"), name="row-windows"), at, "rows")


class Visits(ProcessFunction[str, Payment, Total]):
    """How often the key has come: with all states it would be as many; ``total`` has a digit a state."""

    def open(self, ctx: ProcessContext) -> None:
        self.gone = ctx.value_state("gone", int, 0, ttl=Ttl(0.001))
        self.past = ctx.map_state("past", str, int, ttl=Ttl(60.0, clock="event"))
        self.kept = ctx.value_state("kept", int, 0, ttl=Ttl(86_400.0, refresh="read-write"))

    def process(self, key: str, value: Payment) -> Iterable[Total]:
        self.gone.put(self.gone.get() + 1)
        self.past.put("n", (self.past.get("n") or 0) + 1)
        self.kept.put(self.kept.get() + 1)
        counts = (self.gone.get(), self.past.get("n") or 0, self.kept.get())
        return [Total(key, counts[0] * 100 + counts[1] * 10 + counts[2], 0, value.id)]


def timed(pipeline: Pipeline, at: Names) -> None:
    """Windows on timers, in two stages; and a fold beside them."""
    read = payments(pipeline, at).with_timestamps(watermarks=monotonic())
    to_kafka(totals(read), at, "totals")
    windows = read.key_by(account, name="by-account").process(Windows, name="windows")
    to_kafka(windows, at)
    by_branch = windows.key_by(lambda total: f"b{int(total.key[1:]) % 4}", name="by-branch", values=Total)
    to_kafka(by_branch.process(Branches, name="branch-windows"), at, "branches")


def windowed(pipeline: Pipeline, at: Names) -> None:
    """Windows of each kind, also of what others have made; and a fold beside them."""
    read = payments(pipeline, at).with_timestamps(watermarks=bounded(0.05))
    to_kafka(totals(read), at, "totals")
    by_account = read.key_by(account, name="by-account")
    sums: dict[str, Any] = {"init": nothing, "step": add, "merge": plus, "state": Total}
    tumbled = by_account.window(tumbling(seconds=0.1, early=0.05), lateness=0.05).fold(name="tumbling", **sums)
    slid = by_account.window(sliding(seconds=0.15, every=0.1)).fold(name="sliding", **sums)
    days_ = by_account.window(days("Europe/Berlin")).fold(name="days", **sums)
    to_kafka(tumbled.union(slid, days_, name="all").map(end_of), at)
    counted = by_account.window(rows(7, every=3)).fold(name="counted-windows", **sums)
    to_kafka(counted.map(end_of, name="counts"), at, "counted")
    by_branch = tumbled.key_by(lambda found: f"b{int(found.key[1:]) % 4}", name="by-branch")
    to_kafka(
        by_branch.window(tumbling(seconds=0.2)).reduce(sum_of, name="branch-windows").map(branch_of), at, "branches"
    )
    few = read.filter(lambda payment: payment.amount < 9).key_by(account, name="few")
    to_kafka(few.window(session(gap=0.03)).process(in_session, name="session-windows"), at, "sessions")


def aligned(pipeline: Pipeline, at: Names) -> None:
    """Windows of two topics, of which one is further in event time than it may be ahead of the other."""
    watermarks = bounded(0.01).with_alignment(max_drift=0.05)
    first = payments(pipeline, at).with_timestamps(watermarks=watermarks)
    both = first.union(payments(pipeline, at, "second").with_timestamps(watermarks=watermarks), name="both")
    sums: dict[str, Any] = {"init": nothing, "step": add, "state": Total}
    windows = both.key_by(account, name="by-account").window(tumbling(seconds=0.1))
    to_kafka(windows.fold(name="sums", **sums).map(end_of), at)


def triggered(pipeline: Pipeline, at: Names) -> None:
    """Results of windows before their end, by count and by the clock."""
    read = payments(pipeline, at).with_timestamps(watermarks=bounded(0.05))
    by_account = read.key_by(account, name="by-account")
    sums: dict[str, Any] = {"init": nothing, "step": add, "merge": plus, "state": Total}
    counted = by_account.window(tumbling(seconds=0.1), trigger=on_count(2)).fold(name="counted-windows", **sums)
    purged = by_account.window(tumbling(seconds=0.1), trigger=on_count(3).purging()).fold(name="purged", **sums)
    sessions = by_account.window(session(gap=0.03), trigger=on_count(4)).fold(name="session-windows", **sums)
    united = counted.map(end_of).union(purged.map(end_of, name="purged-ends"), name="both")
    to_kafka(united.union(sessions.map(end_of, name="session-ends"), name="all"), at)
    clocked = by_account.window(tumbling(seconds=0.1), trigger=on_clock(every=0.1)).fold(name="clocked-windows", **sums)
    to_kafka(clocked.map(end_of, name="clocked-ends"), at, "clocked")


def plus(a: Total, b: Total) -> Total:
    return Total(a.key or b.key, a.total + b.total, a.count + b.count, max(a.id, b.id))


def sum_of(a: Windowed[str, Total], b: Windowed[str, Total]) -> Windowed[str, Total]:
    return Windowed("", a.window, Total("", a.value.total + b.value.total, a.value.count + b.value.count, 0))


def end_of(found: Windowed[str, Total]) -> Total:
    return Total(found.key, found.value.total, found.value.count, found.window.end)


def branch_of(found: Windowed[str, Windowed[str, Total]]) -> Total:
    return Total(found.key, found.value.value.total, found.value.value.count, found.window.end)


def in_session(key: str, window: Window, values: list[Payment]) -> Iterable[Total]:
    for payment in values:
        yield Total(key, window.start, len(values), payment.id)


def joined(pipeline: Pipeline, at: Names) -> None:
    """Two sources by their accounts: payments that are near each other, in a window together, or alone; and counted."""
    one, other = (payments(pipeline, at, topic).with_timestamps(watermarks=bounded(0.05)) for topic in TWO)
    left = one.filter(lambda p: p.amount > 3, name="some").key_by(account, name="by-account")
    right = other.filter(lambda p: p.amount < 11, name="others").key_by(account, name="by-owner")
    both = connect(left, right)
    near = both.interval_join(
        pair_of, name="near", lower=-0.01, upper=0.02, unmatched_left=LEFT_ALONE, unmatched_right=RIGHT_ALONE
    )
    to_kafka(near, at)
    alone = near.side_output(LEFT_ALONE).union(near.side_output(RIGHT_ALONE), name="alone-in-both")
    to_kafka(alone.map(as_total, name="alone-shown"), at, "alone")
    together = both.window_join(sliding(seconds=0.05, every=0.025), pair_of, name="together")
    to_kafka(together.union(both.window_join(session(gap=0.03), pair_of, name="at-a-time"), name="all"), at, "windows")
    to_kafka(both.process(Balances, name="balance"), at, "balances")


def matched(pipeline: Pipeline, at: Names) -> None:
    """Sequences of payments of an account: those that come to an end, and those whose time is up; and sums of them."""
    read = payments(pipeline, at).with_timestamps(watermarks=bounded(0.05))
    by_account = read.key_by(account, name="by-account")
    rising = (
        Pattern[Payment]
        .begin("small", lambda payment: payment.amount < 5)
        .times(2)
        .followed_by("large", lambda payment: payment.amount > 8)
        .within(seconds=0.1)
    )
    found = by_account.match(rising, sequence, name="rising", timed_out=UNFINISHED, on_timeout=sequence)
    to_kafka(found, at)
    to_kafka(found.side_output(UNFINISHED), at, "over")
    at_once = Pattern[Payment].begin("any", lambda payment: payment.amount > 2).next("low", lambda p: p.amount < 8)
    pairs = by_account.match(at_once.within(seconds=0.2).overlapping(), sequence, name="pairs")
    windows = pairs.key_by(lambda total: total.key, name="by-key").window(tumbling(seconds=0.1))
    to_kafka(windows.fold(name="pair-sums", init=nothing, step=by_rate, state=Total).map(end_of), at, "sums")


def sequence(key: str, rows: dict[str, list[Payment]]) -> Total:
    of_all = [payment for found in rows.values() for payment in found]
    return Total(key, sum(payment.amount for payment in of_all), len(of_all), of_all[-1].id)


UNFINISHED, UNRULED = OutputTag("unfinished", Total), OutputTag("unruled", Payment)


def looked_up(pipeline: Pipeline, at: Names) -> None:
    """Payments with what a table has for their accounts, or had, and totals of all that have come with something."""
    rates = pipeline.table(KafkaSource.records(at["second"], key=str, value=Payment), name="second")
    read = payments(pipeline, at).with_timestamps(watermarks=bounded(0.05))
    by_account = read.key_by(account, name="by-account")
    rated = by_account.join(rates, with_rate, name="rated")
    to_kafka(rated, at)
    to_kafka(by_account.left_join(rates, with_rate_or_not, name="rated-or-not"), at, "all")
    windows = rated.key_by(lambda total: total.key, name="by-key").window(tumbling(seconds=0.1))
    to_kafka(windows.fold(name="rate-sums", init=nothing, step=by_rate, state=Total).map(end_of), at, "sums")
    versions = rates.with_timestamps(watermarks=monotonic())
    to_kafka(by_account.left_join_as_of(versions, with_rate_or_not, name="rated-then"), at, "then")


class Applied(KeyedBroadcastProcessFunction[str, Payment, Record[str, Payment], Total]):
    """Payments with what all rules together say just then, and how many of its account there were. So do timers."""

    def open(self, ctx: KeyedBroadcastContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.rules = ctx.broadcast_state("rules", str, Payment)
        self.count = ctx.value_state("count", int, 0)

    def process(self, key: str, value: Payment) -> Iterable[Total]:
        self.count.put(self.count.get() + 1)
        self.timers.register(self.ctx.timestamp + 40)
        return [Total(key, self._said(), self.count.get(), value.id)]

    def process_broadcast(self, value: Record[str, Payment]) -> None:
        self.rules.put(value.key, value.value)

    def on_timer(self, key: str, time: int) -> Iterable[Total]:
        # How many rows have come by then is chance, as always: rows do not wait for event time.
        return [Total(key, self._said(), -1, -1)]

    def _said(self) -> int:
        return sum(rule.amount for rule in self.rules.values())


class Ruled(BroadcastProcessFunction[Payment, Record[str, Payment], Total]):
    """Payments with the version of the rule of their account; without one they go aside."""

    side_outputs = (UNRULED,)

    def open(self, ctx: BroadcastContext) -> None:
        self.ctx, self.rules = ctx, ctx.broadcast_state("rules", str, Payment)

    def process(self, value: Payment) -> Iterable[Total]:
        rule = self.rules.get(value.account)
        if rule is None:
            self.ctx.output(UNRULED, value)
        return [] if rule is None else [with_rate(value, rule)]

    def process_broadcast(self, value: Record[str, Payment]) -> None:
        self.rules.put(value.key, value.value)


def ruled(pipeline: Pipeline, at: Names) -> None:
    """Payments with rules that all workers have, with keys and without."""
    rules = pipeline.table(KafkaSource.records(at["second"], key=str, value=Payment), name="second").broadcast()
    read = payments(pipeline, at).with_timestamps(watermarks=bounded(0.05))
    to_kafka(connect(read.key_by(account, name="by-account"), rules).process(Applied, name="applied"), at)
    plain = connect(read, rules, name="rules").process(Ruled, name="ruled")
    to_kafka(plain, at, "all")
    to_kafka(plain.side_output(UNRULED).map(as_total), at, "nobody")


def with_rate(payment: Payment, rate: Payment) -> Total:
    return Total(payment.account, payment.amount * rate.amount, rate.id, payment.id)


def with_rate_or_not(payment: Payment, rate: Payment | None) -> Total:
    return Total(payment.account, payment.amount, -1 if rate is None else rate.id, payment.id)


def by_rate(so_far: Total, rated: Total) -> Total:
    return Total(rated.key, so_far.total + rated.total, so_far.count + 1, 0)


TWO = ("input", "second")
LEFT_ALONE, RIGHT_ALONE = OutputTag("left-alone", Payment), OutputTag("right-alone", Payment)


def async_requests(pipeline: Pipeline, at: Names) -> None:
    """Rows that wait for answers, in order and as they come, one behind the other; and windows behind them."""
    read = payments(pipeline, at).with_timestamps(watermarks=bounded(0.05))
    again = retries(3, first=0.001, most=0.01)
    spread = read.flat_map(shares, name="shares")
    in_order = spread.async_map(answered, name="in-order", capacity=30, retries=again, failed=NOBODY)
    to_kafka(in_order, at)
    to_kafka(in_order.side_output(NOBODY).map(as_total, name="unanswered"), at, "nobody")
    at_once = read.async_map(waited_for, name="at-once", ordered=False, capacity=7)
    to_kafka(at_once.async_map(twice, name="then", ordered=False, capacity=20), at, "both")
    by_account = read.key_by(account, name="by-account", values=Payment)
    to_kafka(by_account.async_map(rate, rated, name="rated", cache=Ttl(3600), capacity=30), at, "rates")
    each = at_once.key_by(lambda total: total.key, name="by-key").window(tumbling(seconds=0.05))
    to_kafka(each.process(in_window, name="counted"), at, "windows")


NOBODY = OutputTag("nobody", Payment)
_failed = set[int]()


async def answered(payment: Payment) -> Total:
    """Some are asked for twice, and of some nobody knows."""
    await asyncio.sleep(payment.id % 7 / 1000)
    if payment.id % 50 == 3 and payment.id not in _failed:
        _failed.add(payment.id)
        raise ConnectionError("ask again")
    if payment.amount == 3:
        raise LookupError("nobody knows")
    return as_total(payment)


def waited_for(payment: Payment) -> Total:
    time.sleep(payment.id % 5 / 1000)
    return as_total(payment)


async def rate(key: str) -> int:
    await asyncio.sleep(len(key) / 1000)
    return len(key)


def rated(payment: Payment, answer: int) -> Total:
    return Total(payment.account, payment.amount * answer, 0, payment.id)


async def twice(total: Total) -> Total:
    await asyncio.sleep(total.id % 3 / 1000)
    return Total(total.key, 2 * total.total, 0, total.id)


def in_window(key: str, window: Window, totals: list[Total]) -> list[Total]:
    return [Total(key, sum(each.total for each in totals), len(totals), window.end)]


def pair_of(left: Payment, right: Payment) -> Total:
    return Total(left.account, left.id, left.amount - right.amount, right.id)


class Balances(CoProcessFunction[str, Payment, Payment, Total]):
    """Of each account and window, the difference between what came in both streams."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.sums = ctx.map_state("sums", int, int)

    def process_left(self, key: str, value: Payment) -> Iterable[Total]:
        return self.add(value.amount)

    def process_right(self, key: str, value: Payment) -> Iterable[Total]:
        return self.add(-value.amount)

    def add(self, amount: int) -> Iterable[Total]:
        end = (self.ctx.timestamp // WINDOW_MS + 1) * WINDOW_MS
        self.sums.put(end, (self.sums.get(end) or 0) + amount)
        self.timers.register(end - 1)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[Total]:
        found = self.sums.get(time + 1) or 0
        self.sums.remove(time + 1)
        return [Total(key, found, 0, time + 1)]


WINDOW_MS = 100


class Windows(ProcessFunction[str, Payment, Total]):
    """What an account was paid in each window; ``id`` is its end."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.sums = ctx.map_state("sums", int, Total)

    def process(self, key: str, value: Payment) -> Iterable[Total]:
        end = (self.ctx.timestamp // WINDOW_MS + 1) * WINDOW_MS
        so_far = self.sums.get(end) or Total(key, 0, 0, end)
        self.sums.put(end, Total(key, so_far.total + value.amount, so_far.count + 1, end))
        self.timers.register(end - 1)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[Total]:
        found = self.sums.get(time + 1)
        self.sums.remove(time + 1)
        return [] if found is None else [found]


class Branches(ProcessFunction[str, Total, Total]):
    """What the accounts of a branch were paid in each window; emitted a moment after theirs."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.sums = ctx.map_state("sums", int, Total)

    def process(self, key: str, value: Total) -> Iterable[Total]:
        so_far = self.sums.get(value.id) or Total(key, 0, 0, value.id)
        self.sums.put(value.id, Total(key, so_far.total + value.total, so_far.count + value.count, value.id))
        self.timers.register(self.ctx.timestamp + 1)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[Total]:
        found = self.sums.get(time)
        self.sums.remove(time)
        return [] if found is None else [found]


def aggregated(pipeline: Pipeline, at: Names) -> None:
    """Aggregates, in one phase and in two; by event time, too."""
    read = payments(pipeline, at).with_timestamps(watermarks=monotonic())
    by_account = read.key_by(account, name="by-account")
    each = by_account.aggregate(
        agg.count(), total=agg.sum(lambda p: p.amount / 10), id=agg.last(lambda p: p.id), name="each", out=Sums
    )
    each.sink(KafkaSink(at["output"], value=Sums, key=lambda sums: sums.key), name="output")
    best = read.key_by(account, name="by-owner").aggregate(
        agg.mean(lambda p: p.amount), best=agg.top(2, lambda p: p.amount, lambda p: p.id), id=agg.max(lambda p: p.id),
        first=agg.first(), many=agg.approx_distinct(lambda p: p.id),
        middle=agg.approx_quantiles(lambda p: p.amount, 0.5),
        name="best", merge=True,
    )  # fmt: skip
    best.sink(KafkaSink(at["best"], value=dict, key=lambda row: row.key), name="best-to-kafka")


def deduplicated(pipeline: Pipeline, at: Names) -> None:
    """Of payments that are alike within 300 ms the first; and the first of each account."""
    read = payments(pipeline, at).with_timestamps(watermarks=monotonic())
    alike = read.key_by(lambda p: (p.account, p.amount), name="by-kind", values=Payment)
    to_kafka(alike.deduplicate(name="once", within=0.3).map(as_total), at)
    to_kafka(read.key_by(account, name="by-account").distinct(name="first", ttl=None).map(as_total), at, "firsts")


def named_windows(pipeline: Pipeline, at: Names) -> None:
    """Sessions as lists, the greatest of each window, values a second."""
    read = payments(pipeline, at).with_timestamps(watermarks=monotonic())
    large = read.filter(lambda p: p.amount > 7).key_by(account, name="by-account")
    by_owner = read.key_by(account, name="by-owner").window(tumbling(seconds=0.1))
    streams: dict[str, Stream[Any]] = {
        "output": large.sessionize(gap=0.05, name="sessions"),
        "best": by_owner.top_n(2, by=lambda p: p.amount, name="best-of-all"),
        "rates": by_owner.rate(name="rate"),
    }
    listed, rated = Windowed[str, list[Payment]], Windowed[str, float]
    for topic, stream in streams.items():
        value: Any = rated if topic == "rates" else listed
        stream.sink(KafkaSink(at[topic], value=value, key=lambda found: found.key), name=topic)


class Sums(msgspec.Struct):
    key: str
    count: int
    total: float
    id: int


def sides(pipeline: Pipeline, at: Names) -> None:
    """Side outputs of records and of timers: one has a state of its own, one goes to a sink as it is.

    Watermarks are those of a strategy of our own, that says the same as ``monotonic``.
    """
    strategy = generated(Newest, on_event=newest, watermark=lambda newest: newest.time - 1)
    read = payments(pipeline, at).with_timestamps(watermarks=strategy)
    parts = read.key_by(account, name="by-account").process(Parts, name="parts")
    to_kafka(parts, at)
    to_kafka(totals(parts.side_output(LARGE), "large-totals"), at, "large")
    to_kafka(parts.side_output(SEEN), at, "seen")


class Newest(msgspec.Struct):
    time: int


def newest(so_far: Newest | None, payment: Payment, time: int) -> Newest:
    return Newest(time) if so_far is None else Newest(max(so_far.time, time))


LARGE, SEEN = OutputTag("large", Payment), OutputTag("seen", Total)


class Parts(ProcessFunction[str, Payment, Total]):
    """Small payments; large ones, each twice; and of each payment, a moment later, that it was seen."""

    side_outputs = (LARGE, SEEN)

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()

    def process(self, key: str, value: Payment) -> Iterable[Total]:
        self.timers.register(self.ctx.timestamp + 5)
        if value.amount < 10:
            yield as_total(value)
        else:
            for _ in range(2):
                self.ctx.output(LARGE, value)

    def on_timer(self, key: str, time: int) -> Iterable[Total]:
        self.ctx.output(SEEN, Total(key, 0, 0, time))
        return []


def clocked(pipeline: Pipeline, at: Names) -> None:
    """Timers of the clock."""
    to_kafka(payments(pipeline, at).key_by(account, name="by-account").process(Gathered, name="gathered"), at)


class Gathered(ProcessFunction[str, Payment, Total]):
    """Hands on what there is of an account as soon as the clock is looked at."""

    def open(self, ctx: ProcessContext) -> None:
        self.timers, self.waiting = ctx.processing_timers(), ctx.list_state("waiting", int)

    def process(self, key: str, value: Payment) -> Iterable[Total]:
        self.waiting.add(value.id)
        self.timers.register(0)
        return []

    def on_processing_timer(self, key: str, time: int) -> Iterable[Total]:
        yield from (Total(key, 0, 0, number) for number in self.waiting)
        self.waiting.clear()


def loop(pipeline: Pipeline, at: Names) -> None:
    """Every payment goes round three times."""
    left = payments(pipeline, at).iterate(three_times, name="rounds")
    to_kafka(left.map(as_total), at)


def three_times(stream: Stream[Payment]) -> tuple[Stream[Payment], Stream[Payment]]:
    counted = stream.key_by(account, values=Payment).process(Round, name="count")
    return counted.filter(lambda p: p.rounds < 3), counted.filter(lambda p: p.rounds == 3)


class Round(ProcessFunction[str, Payment, Payment]):
    """Each round adds to the account's total; a payment leaves with it."""

    def open(self, ctx: ProcessContext) -> None:
        self.total = ctx.value_state("total", int, 0)

    def process(self, key: str, value: Payment) -> Iterable[Payment]:
        self.total.put(self.total.get() + value.amount)
        amount = self.total.get() if value.rounds == 2 else value.amount
        return [Payment(value.id, key, amount, value.rounds + 1)]
