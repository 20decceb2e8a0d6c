"""The job that the golden job directories in this folder were made of: timers of both kinds, and times of splits.

Its sixty payments are in the file, and no broker is needed.
"""

import os
from collections.abc import Iterable

import msgspec

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, bounded, generated
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource

FAR = 10**15
"""A time of the clock that does not come."""


class Payment(msgspec.Struct):
    id: int
    account: str


class Newest(msgspec.Struct):
    time: int


class Waits(ProcessFunction[str, Payment, bytes]):
    """Two timers a payment: in event time, a second after it, and of the clock."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.events, self.clocks = ctx, ctx.timers(), ctx.processing_timers()

    def process(self, key: str, payment: Payment) -> Iterable[bytes]:
        self.events.register(self.ctx.timestamp + 1000)
        self.clocks.register(FAR + payment.id)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[bytes]:
        yield b"%s %d" % (key.encode(), time)

    def on_processing_timer(self, key: str, time: int) -> Iterable[bytes]:
        raise AssertionError("it is too early")


def newest(so_far: Newest | None, payment: Payment, time: int) -> Newest:
    return Newest(time if so_far is None else max(so_far.time, time))


def time(payment: Payment) -> int:
    return (payment.id - 10) * 100


PAYMENTS = [Payment(n, f"a{n % 20}") for n in range(60)]

pipeline = Pipeline(
    f"golden-{os.environ['TEST_BACKEND']}",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=60,
    state_backend=os.environ["TEST_BACKEND"],
)
one = pipeline.source(ListSource(PAYMENTS[:30], splits=2), name="one").with_timestamps(
    time, watermarks=bounded(0.5), name="bounded"
)
other = pipeline.source(ListSource(PAYMENTS[30:], splits=2), name="other").with_timestamps(
    time, watermarks=generated(Newest, on_event=newest, watermark=lambda known: known.time - 1), name="own"
)
(
    one.union(other, name="both")
    .key_by(lambda payment: payment.account, name="by-account")
    .process(Waits, name="waits")
    .sink(FileSink(os.environ["TEST_FILES"]), name="fired")
)
