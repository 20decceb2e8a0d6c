"""Numbers to files. No broker: the input is a list, and the file sink is the only one."""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource


class Number(msgspec.Struct):
    id: int


def slowly(number: Number) -> Number:
    time.sleep(0.0005)
    return number


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.05,
    batch_size=20,
    restart_backoff_initial=0.05,
)
(
    pipeline.source(ListSource([Number(n) for n in range(int(os.environ["TEST_COUNT"]))], splits=2), name="numbers")
    .map(slowly)
    .sink(FileSink(os.environ["TEST_FILES"], value=Number), name="to-files")
)
