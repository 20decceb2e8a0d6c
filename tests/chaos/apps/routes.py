"""Plans whose rows change subtasks in every way that there is; TEST_ROUTE chooses one.

Every output row names the payment that it came from, so that a test can say what is lost, doubled or out of order.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kafka_eos import Pipeline, Stream, Ttl
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Item(msgspec.Struct):
    account: str
    id: int
    number: int


class Total(msgspec.Struct):
    account: str
    id: int
    number: int
    count: int


class Branch(msgspec.Struct):
    branch: str
    id: int
    count: int


PAUSE = float(os.environ.get("TEST_PAUSE", "0"))
SLOW = float(os.environ.get("TEST_PAUSE_OF_ONE", "0"))
"""Seconds a row of one account, so that the worker of its partition is behind the others."""
LETTERS = os.environ.get("TEST_LETTERS")
AFTER = float(os.environ.get("TEST_PAUSE_AFTER", "0"))
"""Seconds a row behind the last exchange."""
BRANCHES = 4
FILLER = "-" + "x" * int(os.environ["TEST_FILLER"]) if "TEST_FILLER" in os.environ else ""
"""Makes rows so large that few of them are more than memory may hold."""


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE + SLOW * (payment.account == "a0"))
    return msgspec.structs.replace(payment, account=payment.account + FILLER)


def items(payment: Payment) -> Iterable[Item]:
    """Some payments have none, some several; the items of one payment go to several subtasks."""
    return [Item(f"{payment.account}-{n}", payment.id, n) for n in range(payment.amount % 4)]


def counted(total: Total, item: Item) -> Total:
    return Total(item.account, item.id, item.number, total.count + 1)


def nothing() -> Total:
    return Total("", 0, 0, 0)


def shown(_: object, total: Any) -> Any:
    return total


def refusing(total: Total, item: Item) -> Total:
    if item.id % 50 == 3:
        raise ArithmeticError("an id of 3")
    return counted(total, item)


def branch_of(total: Total) -> str:
    return f"b{int(total.account.partition('-')[0][1:]) % BRANCHES}"


def by_branch(branch: Branch, total: Total) -> Branch:
    time.sleep(AFTER)
    return Branch(branch_of(total), total.id, branch.count + 1)


def twice(item: Item) -> Iterable[Item]:
    """The second flat_map: items again, each to another subtask."""
    return [Item(f"{item.account}-{n}", item.id, item.number * 2 + n) for n in range(2)]


def fan_out(payments: Stream[Payment]) -> Stream[Any]:
    """flat_map before key_by, and again."""
    once = payments.flat_map(items, name="items").key_by(lambda item: item.account, name="first", values=Item)
    again = once.fold(name="passed", init=nothing, step=counted, emit=shown, state=Total).map(
        lambda total: Item(total.account, total.id, total.number), name="item"
    )
    second = again.flat_map(twice, name="twice").key_by(lambda item: item.account, name="second", values=Item)
    return second.fold(name="total", init=nothing, step=counted, emit=shown, state=Total)


def once(payments: Stream[Payment]) -> Stream[Any]:
    """flat_map before key_by: items of one payment go to several subtasks."""
    keyed = payments.flat_map(items, name="items").key_by(lambda item: item.account, values=Item)
    return keyed.fold(name="total", init=nothing, step=counted, emit=shown, state=Total)


def stages(payments: Stream[Payment]) -> Stream[Any]:
    """Two exchanges in a row, state behind each."""
    single = payments.map(lambda p: Item(p.account, p.id, 0), name="single")
    first = single.key_by(lambda item: item.account, name="first", values=Item)
    totals = first.fold(name="total", init=nothing, step=counted, emit=shown, state=Total)
    second = totals.key_by(branch_of, name="second", values=Total)
    return second.fold(name="branch", init=lambda: Branch("", 0, 0), step=by_branch, emit=shown, state=Branch)


def letters(payments: Stream[Payment]) -> Stream[Any]:
    """The fold behind the exchange refuses some records."""
    keyed = payments.map(lambda p: Item(p.account, p.id, 0), name="single").key_by(lambda i: i.account, values=Item)
    return keyed.fold(name="total", init=nothing, step=refusing, emit=shown, state=Total)


def spread(payments: Stream[Payment]) -> Stream[Any]:
    """Without keys, so without state."""
    return payments.rebalance(name="spread", values=Payment).map(lambda p: Item(p.account, p.id, 0), name="single")


def everywhere(payments: Stream[Payment]) -> Stream[Any]:
    return payments.broadcast(name="everywhere", values=Payment).map(lambda p: Item(p.account, p.id, 0), name="single")


def diamond(payments: Stream[Payment]) -> Stream[Any]:
    """One way changes subtasks and the other does not, and then they meet: item 0 goes over, the others stay."""
    over = payments.rebalance(name="over", values=Payment).map(lambda p: Item(p.account, p.id, 0), name="went-over")
    return over.union(payments.flat_map(numbered, name="stayed"), name="both").map(after, name="after")


def keyed_diamond(payments: Stream[Payment]) -> Stream[Any]:
    """The same behind state: what stays is where its key is."""
    keyed = payments.map(lambda p: Item(p.account, p.id, 0), name="single").key_by(lambda i: i.account, values=Item)
    totals = keyed.fold(name="total", init=nothing, step=counted, emit=shown, state=Total)
    over = totals.rebalance(name="over", values=Total)
    return over.union(totals.map(stayed, name="stayed"), name="both").map(after, name="after")


def numbered(payment: Payment) -> Iterable[Item]:
    return [Item(payment.account, payment.id, n) for n in range(1, 1 + payment.amount % 4)]


def stayed(total: Total) -> Total:
    return Total(total.account, total.id, 1, total.count)


def after(row: Any) -> Any:
    time.sleep(AFTER)
    return row


def apart(payments: Stream[Payment]) -> Stream[Any]:
    """Two parts that have nothing to do with each other; the other one reads the input once more, as number 1."""
    again = pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="again")
    other = again.map(lambda p: Item(p.account, p.id, 1), name="other").key_by(lambda i: i.account, values=Item)
    more = other.fold(name="more", init=nothing, step=counted, emit=shown, state=Total).map(after, name="after-more")
    more.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda row: row.account), name="more-to-kafka")
    keyed = payments.map(lambda p: Item(p.account, p.id, 0), name="single").key_by(lambda i: i.account, values=Item)
    return keyed.fold(name="total", init=nothing, step=counted, emit=shown, state=Total).map(after, name="after")


def expiring(payments: Stream[Payment]) -> Stream[Any]:
    """State goes away while the job runs, sooner or later as it is read."""
    keyed = payments.map(lambda p: Item(p.account, p.id, 0), name="single").key_by(lambda i: i.account, values=Item)
    return keyed.fold(name="total", init=nothing, step=counted, emit=shown, state=Total, ttl=Ttl(0.2))


def straight(payments: Stream[Payment]) -> Stream[Any]:
    """No exchange at all."""
    return payments.map(lambda p: Item(p.account, p.id, 0), name="single")


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
)
payments = pipeline.source(
    KafkaSource(os.environ["TEST_INPUT"], value=Payment),
    name="payments",
    on_error=dead_letter(LETTERS) if LETTERS else "stop",
).map(slowly, name="slowly")
routes: dict[str, tuple[Callable[[Stream[Payment]], Stream[Any]], type]] = {
    "fan-out": (fan_out, Total),
    "once": (once, Total),
    "stages": (stages, Branch),
    "letters": (letters, Total),
    "spread": (spread, Item),
    "everywhere": (everywhere, Item),
    "diamond": (diamond, Item),
    "keyed-diamond": (keyed_diamond, Total),
    "apart": (apart, Total),
    "expiring": (expiring, Total),
    "straight": (straight, Item),
}
route, tp = routes[os.environ["TEST_ROUTE"]]
route(payments).sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=tp, key=lambda row: getattr(row, "account", None) or row.branch),
    name="to-kafka",
)

if __name__ == "__main__":
    pipeline.run()
