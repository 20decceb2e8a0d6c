"""Version 1 of every durable format is read, and continued, by today's code.

``tests/golden`` holds what version 1 has written: job directories and a savepoint. ``job.py`` beside them is the job
that wrote them, from sixty payments. Rule: after a release they are never written again; a new version adds a
directory.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from state_world import Kind

from kafka_eos import Pipeline
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import CountedCodec, KeyCodec, MsgpackCodec, state_codec
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.plan import Plan
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.state.key_groups import group_of, key_group_range, subtask_of
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.savepoints import Snapshot
from kafka_eos.savepoints.snapshot import descriptor_of
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.testing import ListSource, MemorySink

GOLDEN = Path(__file__).parents[3] / "golden"


class Total(msgspec.Struct):
    total: int
    last: int


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Changed(msgspec.Struct):
    """A payment since then."""

    id: int
    account: str
    note: str = ""


class Largest(pydantic.BaseModel):
    account: str
    amount: int


STATES: dict[tuple[str, str], Codec[Any]] = {
    ("total", "accumulator"): CountedCodec(state_codec(Total)),
    ("largest", "accumulator"): CountedCodec(state_codec(Largest)),
    ("seen", "count"): MsgpackCodec(int),
    ("seen", "ids"): MsgpackCodec(list[int]),
}


WITH_ROWS_UNDER_WAY = GOLDEN / "in-flight" / "golden-unaligned"


def jobs() -> list[Path]:
    """Those whose last epoch has all payments in its state."""
    return sorted((GOLDEN / "job").glob("golden-*"))


def snapshots() -> Iterator[Any]:
    """Every manifest and every savepoint; the last epoch of a job has all payments."""
    for path in jobs():
        names = sorted((path / paths.MANIFESTS).iterdir())
        for name in names:
            epoch = paths.parse_manifest_name(f"{paths.MANIFESTS}/{name.name}").epoch.n
            last = name == names[-1]
            yield pytest.param(path, epoch, last, id=f"{path.parent.name}-{path.name}-{epoch}")
    yield pytest.param(GOLDEN / "savepoint", None, True, id="savepoint")


def expected() -> dict[tuple[str, str], dict[str, Any]]:
    """The state after all payments: sixty, of amount n % 13 + 1, or 0 if n ends in seven, by account n % 20."""
    totals: Counter[str] = Counter()
    ids: dict[str, list[int]] = defaultdict(list)
    largest: dict[str, int] = defaultdict(int)
    for n in range(60):
        account, amount = f"a{n % 20}", 0 if n % 10 == 7 else n % 13 + 1
        totals[account] += amount
        ids[account].append(n)
        largest[account] = max(largest[account], amount)
    return {
        ("total", "accumulator"): {a: (3, Total(totals[a], ids[a][-1])) for a in ids},
        ("largest", "accumulator"): {a: (3, Largest(account=a, amount=largest[a])) for a in ids},
        ("seen", "count"): dict.fromkeys(ids, 3),
        ("seen", "ids"): dict(ids),
    }


@pytest.mark.parametrize(("path", "epoch", "last"), list(snapshots()))
@pytest.mark.parametrize(("kind", "parallelism"), [("rocksdb", 1), ("memory", 3)])
def test_state_is_restored(
    path: Path, epoch: int | None, last: bool, kind: Kind, parallelism: int, tmp_path: Path
) -> None:
    snapshot = Snapshot.open(path, epoch)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for (operator, states), subtask in itertools.product(_by_operator().items(), range(parallelism)):
        handles, groups = snapshot.handles_of(operator), key_group_range(subtask, parallelism)
        directory = tmp_path / f"{operator}-{subtask}"
        backend = open_backend(kind, operator, directory, groups, handles, snapshot.storage)
        for name, codec in states.items():
            state = backend.value(StateDescriptor(name, KeyCodec(), codec))
            found.setdefault((operator, name), {}).update(state.items())
        backend.close()

    whole = expected()
    if last:
        assert found == whole
    else:
        assert all(found[place].keys() <= whole[place].keys() for place in whole)
        assert all(ids == whole["seen", "ids"][account][: len(ids)] for account, ids in found["seen", "ids"].items())


@pytest.mark.parametrize(("path", "epoch", "last"), list(snapshots()))
def test_state_is_read_without_the_classes(path: Path, epoch: int | None, last: bool) -> None:
    snapshot = Snapshot.open(path, epoch)

    found = {place: dict(snapshot.read(*place)) for place in STATES}

    assert snapshot.operators() == ["largest", "seen", "total"]
    if last:
        assert found["total", "accumulator"]["a3"] == {"updates": 3, "accumulator": {"total": 20, "last": 43}}
        assert found["largest", "accumulator"]["a3"]["accumulator"] == {"account": "a3", "amount": 11}
        assert found["seen", "ids"] == expected()["seen", "ids"]


def plan(payment: type) -> Plan:
    """As much of the golden job as its rows under way need."""
    pipeline = Pipeline("golden-unaligned")
    keyed = pipeline.source(ListSource([]), name="payments").key_by(
        lambda p: p.account, name="by-account", values=payment
    )
    keyed.reduce(lambda _, new: new, name="seen").sink(MemorySink(), name="ids")
    return pipeline.plan()


@pytest.mark.parametrize("tp", [Payment, Changed])
def test_state_and_rows_under_way_are_together_what_was_read(tmp_path: Path, tp: type) -> None:
    snapshot = Snapshot.open(WITH_ROWS_UNDER_WAY, 1)
    name = paths.manifest_name(EpochId(Epoch(1), Term(1)))
    manifest = records.decode(Manifest, name, snapshot.storage.read(name), WITH_ROWS_UNDER_WAY.name)

    batches = in_flight.read_rows(plan(tp), snapshot.storage, tmp_path / "frames", manifest.in_flight)
    under_way = [payment for _, _, batch in batches for payment in batch.values]
    assert {type(payment) for payment in under_way} == {tp}
    stored = sorted(snapshot.read("seen", "ids"))
    ids: dict[str, list[int]] = defaultdict(list)
    for (account, _), payment_id in stored:
        ids[account].append(payment_id)

    read = sum(position["index"] for position in manifest.sources["payments"].values())
    assert 0 < len(under_way) < read == len(under_way) + len(stored)
    for payment in under_way:
        ids[payment.account].append(payment.id)
    assert all(found == expected()["seen", "ids"][account][: len(found)] for account, found in ids.items())


@pytest.mark.parametrize("path", [*jobs(), WITH_ROWS_UNDER_WAY], ids=lambda path: f"{path.parent.name}-{path.name}")
@pytest.mark.parametrize("more", [0, 1], ids=["in place", "rescaled"])
def test_a_session_has_the_golden_state_where_its_rows_are_routed_to(path: Path, more: int, tmp_path: Path) -> None:
    """As a worker opens it: each key is in the one subtask that the router sends its rows to."""
    snapshot = Snapshot.open(path)
    manifest = snapshot.content
    assert isinstance(manifest, Manifest)
    workers = manifest.parallelism + more
    accounts: Counter[str] = Counter()
    for subtask in range(workers):
        given = (key_group_range(subtask, workers), snapshot.handles_of("seen"), snapshot.storage)
        backend = open_backend("rocksdb", "seen", tmp_path / str(subtask), *given)
        state = backend.value(descriptor_of(snapshot.states("seen")["ids"].description))
        for place, _ in state.items():
            accounts[_account(place)] += 1
            assert subtask_of(group_of(KeyCodec().encode(_account(place))), workers) == subtask
        backend.close()

    assert accounts == Counter(_account(place) for place, _ in snapshot.read("seen", "ids"))


def _account(place: Any) -> str:
    return place if isinstance(place, str) else str(place[0])


@pytest.mark.parametrize("path", [*jobs(), WITH_ROWS_UNDER_WAY], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_record_is_of_version_1(path: Path) -> None:
    stored = Snapshot.open(path).storage
    names = [name for directory in (paths.MANIFESTS, paths.RECEIPTS, paths.TERMS) for name in stored.list(directory)]

    assert {stored.read(name).split(maxsplit=3)[2] for name in [*names, paths.IDENTITY]} == {b"1"}


def _by_operator() -> dict[str, dict[str, Codec[Any]]]:
    found: dict[str, dict[str, Codec[Any]]] = defaultdict(dict)
    for (operator, name), codec in STATES.items():
        found[operator][name] = codec
    return found
