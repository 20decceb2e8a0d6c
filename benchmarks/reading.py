"""CPU and memory of reading alone: ``python -m benchmarks.reading``. By confluent-kafka's objects and kafka-eos-native.

Starts a broker of its own, and reads one topic again and again, by the two in turns. Each turn has a consumer of its
own, which is closed while records are on their way. The memory of the process must not grow from turn to turn.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kafka import PARTITIONS, BrokerClient
from benchmarks.run import own_broker
from benchmarks.workloads import payments
from kafka_eos.connectors.kafka.client.librdkafka import TopicPartition
from kafka_eos.connectors.kafka.client.memory import SHARE, read_ahead
from kafka_eos.connectors.kafka.client.native_module import load_native_module
from kafka_eos.connectors.kafka.source.record_fetchers import MessageFetcher, NativeFetcher, RecordFetcher

_TOPIC = "payments"
_STORED, _READ = 600_000, 500_000
_BATCH = 5_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--turns", type=int, default=6, help="of 500,000 records each (default: %(default)s)")
    options = parser.parse_args(arguments)
    native = load_native_module()
    if native.module is None:
        print(native.describe(), file=sys.stderr)
        return 2
    costs: dict[str, list[float]] = {"objects": [], "native": []}
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home, own_broker(Path(home)) as broker:
        cluster = BrokerClient(broker.bootstrap)
        cluster.create(_TOPIC)
        cluster.load(_TOPIC, ((account, value) for account, _, value in payments(_STORED)))
        config = {
            "bootstrap.servers": broker.bootstrap, "group.id": "reading", "enable.auto.commit": False,
            "check.crcs": True, "fetch.queue.backoff.ms": 5, **read_ahead(SHARE, PARTITIONS),
        }  # fmt: skip
        for turn in range(options.turns + 1):  # the first one warms the page cache, and does not count
            for name, found in costs.items():
                cost = _read(MessageFetcher(config) if name == "objects" else NativeFetcher(config, native))
                if turn:
                    found.append(cost)
                gc.collect()
                print(f"{name:>7}  {cost:.2f} µs CPU a record  {_resident() / 1e6:.0f} MB", flush=True)
    for name, found in costs.items():
        if found:
            print(f"{name}: median {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}) µs a record")
    return 0


def _read(fetcher: RecordFetcher) -> float:
    """Return the CPU in microseconds per record, of all threads of the process."""
    fetcher.assign([TopicPartition(_TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found, begun = 0, time.process_time()
    while found < _READ:
        for records in fetcher.fetch(_BATCH, 0.1).records:
            found += len(records)
            assert len(records.values()) == len(records.offsets)
            records.raw(0)
    spent = time.process_time() - begun
    fetcher.close()
    return spent / found * 1e6


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    sys.exit(main())
