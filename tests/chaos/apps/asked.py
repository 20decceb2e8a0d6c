"""Rows that wait for a service: in order and as answered, by coroutines and in threads; and what waits behind them.

ordered    each payment with its price, in the order of its account
unordered  the same, as the answers come
kept       each payment with what the service says of its account, which is kept for a moment
counted    how many of each account are in a window of event time, behind the answers
failed     payments of which the service says that they are none
"""

import asyncio
import os
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec

from kafka_eos import OutputTag, Pipeline, Ttl, Window, bounded, breaker, retries, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

SERVICE = os.environ["TEST_SERVICE"]
BASE = int(os.environ["TEST_BASE"])
TIMEOUT = float(os.environ.get("TEST_TIMEOUT", "5"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Row(msgspec.Struct):
    kind: str
    account: str
    id: int
    answer: int
    count: int = 0


async def said(number: int) -> int:
    """By hand: a client of a library would do the same."""
    at = urlsplit(SERVICE)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        writer.write(f"GET /price/{number} HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        if b" 200 " not in head.splitlines()[0]:
            raise ConnectionError(head.decode())
    finally:
        writer.close()
    return int(body)


async def price(payment: Payment) -> Row:
    return Row("ordered", payment.account, payment.id, await said(payment.id))


async def rate(account: str) -> int:
    return await said(number_of(account))


def number_of(account: str) -> int:
    """What the service knows an account by: no payment has such a number."""
    return 1_000_000 + int(account.lstrip("a"))


def rated(payment: Payment, answer: int) -> Row:
    return Row("kept", payment.account, payment.id, answer)


def waited_for(payment: Payment) -> Row:
    if payment.amount == 5:
        raise ValueError("no such payment")
    with urlopen(f"{SERVICE}/price/{payment.id}", timeout=5) as said:
        return Row("unordered", payment.account, payment.id, int(said.read()))


def numbered(before: Row, row: Row) -> Row:
    return msgspec.structs.replace(row, count=before.count + 1)


def counted(account: str, window: Window, ids: list[Row]) -> list[Row]:
    return [Row("counted", account, (window.end - BASE), 0, len(ids))]


failed = OutputTag("failed", Payment)
pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=20,
    restart_backoff_initial=0.05,
)
read = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .with_timestamps(lambda payment: BASE + payment.id, watermarks=bounded(0.2))
    .filter(lambda payment: payment.amount > 0)
)
again = retries(int(os.environ.get("TEST_TRIES", "20")), first=0.01, most=0.05)
pausing = breaker(8, pause=0.1)
in_order = read.async_map(price, name="ordered", capacity=30, timeout=TIMEOUT, retries=again, breaker=pausing)
as_answered = read.async_map(
    waited_for, name="unordered", ordered=False, capacity=10, timeout=5, retries=again, failed=failed
)
nothing = as_answered.side_output(failed).map(lambda payment: Row("failed", payment.account, payment.id, 0))
windows = (
    as_answered.key_by(lambda row: row.account, name="by-window")
    .window(tumbling(seconds=0.1))
    .process(counted, name="counted")
)
kept = read.key_by(lambda payment: payment.account, name="by-asked", values=Payment).async_map(
    rate, rated, name="kept", cache=Ttl(0.5), ordered=False, capacity=30, timeout=TIMEOUT, retries=again
)
first = in_order.map(lambda row: msgspec.structs.replace(row, count=1))
places = first.key_by(lambda row: row.account, name="by-account", values=Row).reduce(numbered, name="placed")
places.union(as_answered, kept, nothing, windows, name="all").sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=Row, key=lambda row: row.account), name="to-kafka"
)

if __name__ == "__main__":
    pipeline.run()
