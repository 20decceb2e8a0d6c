"""Windows of every kind by their verbs: which payments each account has had in each, and then its branch; and verbs
whose state ends with event time.

The id of a payment tells its event time, in milliseconds since ``TEST_BASE``; see ``windows.py``.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline, Window, Windowed, monotonic, on_clock, on_count, rows, session, sliding, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

BASE = int(os.environ["TEST_BASE"])
PAUSE = float(os.environ.get("TEST_PAUSE", "0.0002"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Sum(msgspec.Struct):
    kind: str
    key: str
    start: int
    end: int
    ids: list[int]


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


def add(ids: list[int], payment: Payment) -> list[int]:
    return sorted([*ids, payment.id])


def merge(one: list[int], other: list[int]) -> list[int]:
    return sorted([*one, *other])


def shown(kind: str, key: str, window: Window, ids: list[int]) -> Sum:
    return Sum(kind, key, window.start - BASE, window.end - BASE, ids)


def in_session(key: str, window: Window, found: list[Payment]) -> list[Sum]:
    return [shown("session", key, window, [payment.id for payment in found])]


def of_branches(key: str, window: Window, ids: list[int]) -> Sum:
    return shown("branch", key, window, ids)


def slid_of(found: Windowed[str, list[int]]) -> Sum:
    return shown("sliding", found.key, found.window, found.value)


def greatest_of(found: Windowed[str, list[Payment]]) -> Sum:
    return shown("greatest", found.key, found.window, [payment.id for payment in found.value])


def in_threes(key: str, window: Window, found: list[Payment]) -> list[Sum]:
    return [Sum("threes", key, 0, 0, [payment.id for payment in found])]


def few_of(payment: Payment) -> Sum:
    return Sum("few", payment.account, 0, 0, [payment.id])


def first_of(payment: Payment) -> Sum:
    return Sum("firsts", payment.account, 0, 0, [payment.id])


def counted_of(found: Windowed[str, list[int]]) -> Sum:
    return shown("counted", found.key, found.window, found.value)


def clocked_of(found: Windowed[str, list[int]]) -> Sum:
    return shown("clocked", found.key, found.window, found.value)


def tumbled_of(found: Windowed[str, list[int]]) -> Sum:
    return shown("tumbling", found.key, found.window, found.value)


def of_branch(found: Windowed[str, list[int]]) -> str:
    return f"b{int(found.key[1:]) % 4}"


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
by_account = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .with_timestamps(lambda payment: BASE + payment.id, watermarks=monotonic())
    .map(slowly)
    .filter(lambda payment: payment.amount > 0 and payment.id % 300 < 200)
    .key_by(lambda payment: payment.account)
)
tumbled = by_account.window(tumbling(seconds=0.05)).fold(name="tumbling", init=list, step=add, state=list[int])
slid = by_account.window(sliding(seconds=0.1, every=0.04)).fold(
    name="sliding", init=list, step=add, merge=merge, state=list[int]
)
sessions = by_account.window(session(gap=0.06)).process(in_session, name="sessions")
branches = (
    tumbled.key_by(of_branch, name="by-branch")
    .window(tumbling(seconds=0.1))
    .fold(
        name="branches",
        init=list,
        step=lambda ids, found: merge(ids, found.value),
        emit=of_branches,
        state=list[int],
    )
)
greatest = by_account.window(tumbling(seconds=0.2)).top_n(2, name="greatest", by=lambda payment: payment.id)
threes = by_account.window(rows(3)).process(in_threes, name="threes")
few = by_account.deduplicate(name="few", within=0.03)
firsts = by_account.distinct(name="firsts", ttl=None)
counted = by_account.window(tumbling(seconds=0.05), trigger=on_count(2)).fold(
    name="counted", init=list, step=add, state=list[int]
)
clocked = by_account.window(tumbling(seconds=0.05), trigger=on_clock(every=0.2).purging()).fold(
    name="clocked", init=list, step=add, state=list[int]
)
tumbled.map(tumbled_of, name="tumbled").union(
    slid.map(slid_of, name="slid"),
    sessions,
    branches,
    greatest.map(greatest_of, name="greatest-shown"),
    threes,
    few.map(few_of, name="few-shown"),
    firsts.map(first_of, name="firsts-shown"),
    counted.map(counted_of, name="counted-shown"),
    clocked.map(clocked_of, name="clocked-shown"),
    name="all",
).sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Sum, key=lambda sum_: sum_.key), name="to-kafka")

if __name__ == "__main__":
    pipeline.run()
