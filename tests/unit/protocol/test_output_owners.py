"""Output that a manifest may name, and output that it may not."""

from __future__ import annotations

import pytest

from kafka_eos.abc.committer import OutputOwner
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.protocol.output_owners import find_foreign, find_unplanned

OWN, OTHER = JobIdentity("0123456789ab"), JobIdentity("ba9876543210")
NEWEST = EpochId(Epoch(7), Term(3))


def owner(
    job: str = "orders",
    identity: JobIdentity | None = OWN,
    term: int = 3,
    epoch: int | None = 7,
    target: str | None = None,
) -> OutputOwner:
    return OutputOwner("x", job, identity, Term(term), None if epoch is None else Epoch(epoch), target)


@pytest.mark.parametrize("own", [owner(), owner(epoch=6), owner(term=2, epoch=5), owner(epoch=None)])
def test_output_of_this_incarnation_up_to_the_epoch_of_the_manifest_is_its_own(own: OutputOwner) -> None:
    assert find_foreign([own], "orders", OWN, NEWEST) == ()


@pytest.mark.parametrize(
    "foreign",
    [
        owner(job="payments"),
        owner(identity=OTHER),
        owner(identity=None),
        owner(term=4),
        owner(epoch=8),
        owner(job="order"),
    ],
)
def test_any_other_output_is_foreign_and_is_named(foreign: OutputOwner) -> None:
    (named,) = find_foreign([owner(), foreign], "orders", OWN, NEWEST)

    assert repr(foreign.job) in named and f"term {foreign.term}" in named


def test_a_job_without_an_identity_owns_output_without_one_only() -> None:
    assert find_foreign([owner(identity=None)], "orders", None, NEWEST) == ()
    assert len(find_foreign([owner()], "orders", None, NEWEST)) == 1


def test_a_target_must_be_one_of_a_sink_in_the_same_scope() -> None:
    targets = {"db:a": {"totals"}, "db:b": {"accounts"}}
    planned = [("db:a", owner(target="totals")), ("db:c", owner(target=None))]

    assert find_unplanned(planned, targets) == ()
    assert find_unplanned([*planned, ("db:a", owner(target="accounts"))], targets) == ("x in db:a: accounts",)
    assert find_unplanned([("db:c", owner(target="totals"))], targets) == ("x in db:c: totals",)
