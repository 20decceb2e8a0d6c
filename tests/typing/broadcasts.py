"""What a type checker must infer of broadcast state. Checked with ``mypy --strict``; never run."""

from collections.abc import Iterable
from typing import assert_type

import msgspec

from kafka_eos import (
    Broadcast,
    BroadcastConnectedStream,
    BroadcastContext,
    BroadcastProcessFunction,
    BroadcastState,
    BroadcastStream,
    KeyedBroadcastConnectedStream,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    Pipeline,
    Stream,
    connect,
)
from kafka_eos.connectors.kafka import KafkaSource, Record


class Payment(msgspec.Struct):
    user: str


class Rule(msgspec.Struct):
    above: int


class Watch(BroadcastProcessFunction[Payment, Record[str, Rule], int]):
    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", str, Rule)
        assert_type(self.rules, BroadcastState[str, Rule])

    def process(self, value: Payment) -> Iterable[int]:
        assert_type(self.rules.get(value.user), Rule | None)
        return [rule.above for rule in self.rules.values()]

    def process_broadcast(self, value: Record[str, Rule]) -> None:
        self.rules.put(value.key, value.value)
        self.rules.put(value.key, 1)  # type: ignore[arg-type]


class OfUsers(KeyedBroadcastProcessFunction[str, Payment, Record[str, Rule], str]):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        self.count = ctx.value_state("count", int, 0)
        self.timers = ctx.timers()

    def process(self, key: str, value: Payment) -> Iterable[str]:
        assert_type(self.count.get(), int)
        return [key]


class OfStream(BroadcastProcessFunction[Payment, Rule, int]):
    def process(self, value: Payment) -> Iterable[int]:
        return []


pipeline = Pipeline("typed")
payments = pipeline.source(KafkaSource("payments", value=Payment), name="payments")
rules = pipeline.table(KafkaSource.records("rules", key=str, value=Rule), name="rules").broadcast()
by_user = payments.key_by(lambda payment: payment.user)
stream = pipeline.source(KafkaSource("stream", value=Rule), name="stream").broadcast()

assert_type(rules, Broadcast[Record[str, Rule]])
assert_type(stream, BroadcastStream[Rule])
assert_type(stream.map(lambda rule: rule.above), Stream[int])
assert_type(connect(payments, rules), BroadcastConnectedStream[Payment, Record[str, Rule]])
assert_type(connect(by_user, rules), KeyedBroadcastConnectedStream[str, Payment, Record[str, Rule]])
assert_type(connect(payments, rules).process(Watch), Stream[int])
assert_type(connect(payments, rules).process(Watch()), Stream[int])
assert_type(connect(by_user, rules).process(OfUsers), Stream[str])
assert_type(connect(payments, stream).process(OfStream), Stream[int])
connect(payments, stream).process(Watch)  # type: ignore[arg-type]
connect(payments, rules).process(OfUsers)  # type: ignore[arg-type]
connect(by_user, rules).process(Watch)  # type: ignore[arg-type]
connect(payments, rules).process(OfStream)  # type: ignore[arg-type]
connect(payments, payments)  # type: ignore[call-overload]
rules.map(lambda rule: rule)  # type: ignore[attr-defined]
