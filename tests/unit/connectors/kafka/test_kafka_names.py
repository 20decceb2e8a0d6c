"""Names that a job has on a cluster: what is there was written by older versions too, so none may change."""

from __future__ import annotations

import os
import socket

import pytest

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka import job_names as names
from kafka_eos.connectors.kafka.job_names import OffsetMetadata, TransactionalId
from kafka_eos.connectors.kafka.source.group_offsets import list_group_incarnations
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term

IDENTITY = JobIdentity("00000000000a")
IDS = {
    f"orders.{IDENTITY}.3.1.2": TransactionalId("orders", IDENTITY, Term(3), 1, 2),
    "orders.3.1.2": TransactionalId("orders", None, Term(3), 1, 2),
    f"orders.0.{2**62 - 1}.10": TransactionalId("orders", None, Term(0), 2**62 - 1, 10),
}


def of(identity: JobIdentity | None) -> JobContext:
    return JobContext("orders", Term(3), {}, identity)


@pytest.mark.parametrize("name", IDS)
def test_a_transactional_id_is_written_as_it_is_read(name: str) -> None:
    assert str(IDS[name]) == name
    assert TransactionalId.parse(name) == IDS[name]


@pytest.mark.parametrize(
    "name",
    [
        *("orders", f"orders.{IDENTITY}", "orders.3.1", f"x.orders.{IDENTITY}.3.1.2", "orders.3.1.x"),
        *("orders.03.1.2", "orders.3.00.2", f"orders.{2**63}.1.2", f"orders.3.1.{'9' * 5000}"),
    ],
    ids=lambda name: name[:20],
)
def test_other_names_are_no_transactional_ids(name: str) -> None:
    """Nor are those with a number that no job writes, or that is read as another one."""
    assert TransactionalId.parse(name) is None


def test_a_registration_is_known_by_its_incarnation() -> None:
    assert names.registration_id("orders", IDENTITY) == f"orders.{IDENTITY}"
    assert names.parse_registration_id(f"orders.{IDENTITY}") == IDENTITY
    assert [names.parse_registration_id(name) for name in ("orders", "orders.3.1.2", f"orders.{IDENTITY}.3.1.2")] == [
        None
    ] * 3


def test_marker_groups_of_a_subtask_begin_alike() -> None:
    assert names.marker_groups(of(IDENTITY), 5) == f"orders.{IDENTITY}.5"
    assert names.marker_groups(of(None), 5) == "orders.5"


def test_a_marker_group_belongs_to_the_incarnation_of_its_transaction() -> None:
    transaction = TransactionalId("orders", IDENTITY, Term(3), 5, 0)
    query = TransactionalId("orders", None, Term(3), 5, 0)

    assert all(
        names.is_marker_group(name, transaction) for name in (f"orders.{IDENTITY}.5.0", f"orders.{IDENTITY}.6.1")
    )
    assert names.is_marker_group(str(query), query), "that of a streaming query"
    assert not any(
        names.is_marker_group(name, transaction)
        for name in (
            "orders.5.0",
            f"payments.{IDENTITY}.5.0",
            f"x.orders.{IDENTITY}.5.0",
            f"orders.{IDENTITY}.5.0.1",
            "anything",
        )
    )


@pytest.mark.parametrize(
    ("metadata", "by"),
    [
        (
            f"kafka_eos orders {IDENTITY} 7/3 a/9",
            OffsetMetadata("orders", IDENTITY, EpochId(Epoch(7), Term(3)), "a", 9),
        ),
        ("kafka_eos orders - 7/3 a/9", OffsetMetadata("orders", None, EpochId(Epoch(7), Term(3)), "a", 9)),
        ("kafka_eos orders - 7/3 a/9\0", OffsetMetadata("orders", None, EpochId(Epoch(7), Term(3)), "a", 9)),
        ("kafka_eos 7/3", None),
        (f"kafka_eos orders - {'9' * 4000}/3 a/9", None),
        ("kafka_eos orders - 7/03 a/9", None),
        (f"kafka_eos orders - 7/3 a/{2**40}", None),
        ("kafka_eos orders - 7/3 a/0", None),
        ("", None),
        (None, None),
        ("of another program", None),
    ],
)
def test_the_metadata_of_an_offset_tells_who_committed_it(metadata: str | None, by: OffsetMetadata | None) -> None:
    assert OffsetMetadata.parse(metadata) == by


@pytest.mark.parametrize("identity", [IDENTITY, None])
def test_metadata_is_written_as_it_is_read(identity: JobIdentity | None) -> None:
    told = names.offset_metadata(of(identity), EpochId(Epoch(7), Term(3)))

    here = socket.gethostname(), os.getpid()

    assert told == f"kafka_eos orders {identity or '-'} 7/3 {here[0]}/{here[1]}"
    assert OffsetMetadata.parse(told) == OffsetMetadata("orders", identity, EpochId(Epoch(7), Term(3)), *here)


def test_an_incarnation_is_listed_with_the_newest_epoch_of_its_offsets() -> None:
    """The newest term need not be that of the newest epoch: idle partitions keep what an older one committed."""
    by = [
        OffsetMetadata("orders", IDENTITY, EpochId(Epoch(n), Term(term)), "a", n)
        for n, term in ((7, 3), (9, 4), (8, 4))
    ]

    newer = EpochId(Epoch(10), Term(5))
    others = [OffsetMetadata("other", IDENTITY, newer, "a", 1), OffsetMetadata("orders", None, newer, "b", 2)]

    signs = list_group_incarnations("orders", "group", [*by, *others])

    assert [(sign.identity, sign.term, sign.committed, sign.process) for sign in signs] == [
        (IDENTITY, Term(4), Epoch(9), ("a", 9)),
        (None, Term(5), Epoch(10), ("b", 2)),
    ]
