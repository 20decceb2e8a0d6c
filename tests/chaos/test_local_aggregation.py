"""Sums in two phases, and state without an exchange, under kills: exact at every checkpoint and in the output."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.provenance import HEADER, parse_provenance
from kafka_eos.plan import FoldNode, Plan
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.operators.fold import STATE
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_records import Manifest
from tests.chaos.harness import Job, read
from tests.chaos.offline import plan_of
from tests.chaos.running import check_all, manifests, nothing_left, refused, storage
from tests.chaos.storm import Storm
from tests.marks import campaign

NewJob = Callable[..., Job]
Sums = dict[str, tuple[int, int]]
"""By account: number of payments and their sum."""

PAYMENTS = 300
KILLS = ("source.capture.before=kill@3", "snapshot.uploaded=kill@2", "commit.before=kill@2", "recovery.restored=kill")


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(("workers", "mode"), [(1, "aligned"), (3, "aligned"), (3, "unaligned")])
def test_sums_in_two_phases_are_exact(new_job: NewJob, tmp_path: Path, workers: int, mode: str) -> None:
    job = new_job(PAYMENTS, "sums.py", TEST_PAUSE=0.001, KAFKA_EOS_RETAINED_CHECKPOINTS=6)
    storm = Storm(job, PAYMENTS)
    with storm.through(*KILLS, KAFKA_EOS_PARALLELISM=workers, KAFKA_EOS_CHECKPOINT_MODE=mode):
        storm.feed()
    _check_checkpoints(job, tmp_path)
    assert (mode == "unaligned") == any(manifest.in_flight for manifest in manifests(job))

    job.run()

    _check(job, tmp_path)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(("workers", "mode"), [campaign(1, "aligned"), (2, "aligned"), campaign(3, "unaligned")])
def test_sums_are_exact_when_most_of_them_are_set_aside(
    new_job: NewJob, tmp_path: Path, workers: int, mode: str
) -> None:
    """Memory for one key, so that each batch is set aside; killed then, and while all of it is taken out again."""
    job = new_job(PAYMENTS, "sums.py", TEST_PAUSE=0.001, KAFKA_EOS_STATE_CACHE_ENTRIES=10)
    faults = ("scratch.put=kill@20", "scratch.taken=kill@20", "snapshot.uploaded=kill@2", "scratch.taken=error@10")
    with Storm(job, PAYMENTS).through(*faults, KAFKA_EOS_PARALLELISM=workers, KAFKA_EOS_CHECKPOINT_MODE=mode):
        pass
    _check_checkpoints(job, tmp_path)

    job.run()

    _check(job, tmp_path)
    assert list(job.directory.rglob("*.scratch")) == []


@pytest.mark.chaos
@pytest.mark.campaign
def test_sums_in_two_phases_move_to_more_workers(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job(PAYMENTS, "sums.py", TEST_PAUSE=0.001, KAFKA_EOS_CHECKPOINT_MODE="unaligned")
    storm = Storm(job, PAYMENTS)
    for workers in (2, 3):
        with storm.through("worker.ack.after=kill@3", KAFKA_EOS_PARALLELISM=workers):
            storm.feed()

    job.run()

    _check(job, tmp_path)


@pytest.mark.chaos
@pytest.mark.campaign
def test_local_state_is_exact_and_stays_where_it_is(new_job: NewJob) -> None:
    """Payments of an account are in one partition, so nothing has to change workers."""
    job = new_job(PAYMENTS, "totals.py", TEST_LOCAL=1, TEST_PAUSE=0.001)
    with Storm(job, PAYMENTS).through(*KILLS, KAFKA_EOS_PARALLELISM=3):
        pass
    job.run()
    check_all(job)

    job.environment["KAFKA_EOS_PARALLELISM"] = "2"
    assert "Set parallelism=3 (the default is the number of cores), or omit local=True" in refused(job, 2)

    del job.environment["TEST_LOCAL"]
    Storm(job, PAYMENTS + 4 * 150).feed()
    job.run()
    check_all(job)


# ---------------------------------------------------------------- what a job left


def _check(job: Job, directory: Path) -> None:
    nothing_left(job)
    _check_checkpoints(job, directory / "end")
    wanted = _sums(_below(job, None))
    shown: dict[str, list[dict[str, Any]]] = defaultdict(list)
    texts: dict[str, list[str]] = defaultdict(list)
    for message in sorted(read(job.bootstrap, job.output), key=lambda m: (m.partition(), m.offset())):
        row = json.loads(message.value())
        shown[row["account"]].append(row)
        texts[row["account"]].append(dict(message.headers())[HEADER].decode())

    assert {key: (rows[-1]["count"], rows[-1]["total"]) for key, rows in shown.items()} == wanted
    for key, rows in shown.items():
        assert [parse_provenance(text).update for text in texts[key]] == list(range(1, len(rows) + 1))
        counts = [row["count"] for row in rows]
        assert counts == sorted(set(counts)), f"{key}: an output without new input, or out of order"
        epochs = [(parse_provenance(text).term.n, parse_provenance(text).epoch.n) for text in texts[key]]
        assert len(set(epochs)) == len(epochs), f"{key}: two outputs in an epoch"
    names = Counter(parse_provenance(text).identity for of_key in texts.values() for text in of_key)
    assert [name for name, times in names.items() if times > 1] == []


def _check_checkpoints(job: Job, directory: Path) -> None:
    """Each stored checkpoint: state, and what is under way to it, are the sums of the input below the offsets."""
    plan = plan_of(job)
    for number, manifest in enumerate(manifests(job)):
        found = _state(job, plan, manifest, directory / f"state-{number}")
        for key, part in _under_way(job, plan, manifest, directory / f"frames-{number}"):
            count, total = found.get(key, (0, 0))
            found[key] = count + part.count, total + part.total
        assert found == _sums(_below(job, manifest)), f"{manifest.name}: not the sums of its input"


def _below(job: Job, manifest: Manifest | None) -> Iterator[dict[str, Any]]:
    ends = None if manifest is None else manifest.sources["payments"]
    for message in read(job.bootstrap, job.input):
        split = f"{job.input}/{message.partition()}"
        if ends is None or message.offset() < int(str(ends.get(split, {"offset": 0})["offset"])):
            yield json.loads(message.value())


def _sums(payments: Iterator[dict[str, Any]]) -> Sums:
    sums: Sums = {}
    for payment in payments:
        key = "hot" if payment["id"] % 2 else payment["account"]
        count, total = sums.get(key, (0, 0))
        sums[key] = count + 1, total + payment["amount"]
    return sums


def _state(job: Job, plan: Plan, manifest: Manifest, directory: Path) -> Sums:
    node = plan.node("sum")
    assert isinstance(node, FoldNode)
    handles = [handle for handle in manifest.states if handle.operator == "sum"]
    backend = open_backend("memory", "sum", directory, range(MAX_KEY_GROUPS), handles, storage(job))
    try:
        entries = backend.value(StateDescriptor(STATE, node.key_codec, node.entry_codec)).items()
        return {key: (acc.count, acc.total) for key, (_, acc) in entries}
    finally:
        backend.close()


def _under_way(job: Job, plan: Plan, manifest: Manifest, scratch: Path) -> Iterator[tuple[str, Any]]:
    """Accumulators that had not reached the owner of their key."""
    for _, exchange, batch in in_flight.read_rows(plan, storage(job), scratch, manifest.in_flight):
        assert exchange == "sum-partial"
        yield from zip(batch.keys or (), batch.values, strict=True)
