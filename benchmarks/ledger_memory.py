"""What an audit holds of a long ledger: memory and time for each epoch.

    python -m benchmarks.ledger_memory --epochs 100000 --partitions 12

The ledger is written as a job writes it, every partition read on in every epoch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path

from kafka_eos.abc.committer import Committable, Spread
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.ids import SplitId
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage, LocalStorage

JOB, TOPIC = "long", "6b1f0c52-8f0e-4a57-9d0c-8d3a2f1b7e90"
WORKERS = 2


def manifest(epoch: int, partitions: int) -> Manifest:
    """An epoch of a job with a fold, a process function and a sink."""
    positions = {
        SplitId(f"orders/{p}"): {"offset": epoch * 1000 + p, "topic_id": TOPIC, "begin": 0} for p in range(partitions)
    }
    spread = Spread("totals", "murmur2_random", 12, 12)
    committable = Committable("kafka", {}, 2000, {"totals": 2000}, {"totals": spread})
    files = (FileRef("000010.sst", f"{epoch:064x}", 1000),)
    states = tuple(
        StateHandle(operator, "rocksdb", (n * 64, n * 64 + 63), files, ({"name": "accumulator"},))
        for operator in ("total", "seen")
        for n in range(WORKERS)
    )
    return Manifest(
        job=JOB, epoch=epoch, term=1, created_at=epoch, plan="f" * 64, max_key_groups=128, parallelism=WORKERS,
        sources={"orders": positions}, states=states, committables=(committable,) * WORKERS, identity="0123456789ab",
    )  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=100_000)
    options.add_argument("--partitions", type=int, default=12)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="kafka-eos-") as scratch:
        measure(LocalStorage(Path(scratch) / JOB), given.epochs, given.partitions)


def measure(storage: JobStorage, epochs: int, partitions: int) -> None:
    """Write the ledger, read it, and say what that took."""
    written = EpochLedger(storage, JOB, print)
    for epoch in range(epochs):
        written.write_epoch(manifest(epoch, partitions))
    lines = sum(map(len, storage.lines(paths.LEDGER)))
    tracemalloc.start()
    entries = ledger.read(storage)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    began = time.perf_counter()
    ledger.read(storage)
    read = time.perf_counter() - began
    began = time.perf_counter()
    assert sum(len(entry.sources["orders"]) for entry in entries.values()) == epochs * partitions
    walked = time.perf_counter() - began
    print(f"{epochs:,} epochs of {partitions} partitions, {lines / 1e6:,.0f} MB of lines")
    print(f"held: {held / 1e6:,.0f} MB, {held / epochs:,.0f} bytes an epoch; {peak / 1e6:,.0f} MB while it is read")
    print(f"read in {read:.1f} s, gone through in {walked:.1f} s")


if __name__ == "__main__":
    main()
