"""How outputs were divided over partitions, epoch by epoch, as the ledger tells it."""

from __future__ import annotations

from kafka_eos.abc.committer import Spread
from kafka_eos.audit.facts.partitioning_history import Regime, regimes
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.storage.epoch_ledger import LedgerEntry

TWO, GROWN, FOUR = Spread("out", "murmur2", 2, 2), Spread("out", "murmur2", 2, 4), Spread("out", "murmur2", 4, 4)


def entry(epoch: int, spread: Spread | None = None, *, untold: int = 0, sink: str = "totals") -> LedgerEntry:
    return LedgerEntry(
        EpochId(Epoch(epoch), Term(1)), 0, "", 1, False, {}, {} if untold else {sink: 1}, untold,
        {} if spread is None else {sink: spread}, {},
    )  # fmt: skip


def found(*entries: LedgerEntry) -> tuple[Regime, ...]:
    return regimes(entries)["totals"]


def test_epochs_that_say_the_same_are_one_regime() -> None:
    told = [entry(1, TWO), entry(2, TWO), entry(3, GROWN), entry(4, FOUR), entry(5, FOUR)]
    nothing = LedgerEntry(EpochId(Epoch(0), Term(1)), 0, "", 1, False, {}, {}, 0, {}, {})

    assert found(nothing, *told) == (Regime(2, TWO), Regime(3, GROWN), Regime(5, FOUR))


def test_each_sink_has_its_own() -> None:
    both = regimes([entry(0, TWO), entry(1, FOUR, sink="other"), entry(2, TWO)])

    assert both == {"totals": (Regime(2, TWO),), "other": (Regime(1, FOUR),)}


def test_of_epochs_before_the_ledger_nothing_is_known() -> None:
    assert found(entry(4, TWO)) == (Regime(3, None), Regime(4, TWO))
    assert found(entry(0), entry(1, TWO)) == (Regime(0, None), Regime(1, TWO))
    assert found(entry(0, untold=3), entry(1, TWO)) == (Regime(0, None), Regime(1, TWO))


def test_an_epoch_that_is_missing_may_be_of_either_side() -> None:
    assert found(entry(0, TWO), entry(3, TWO)) == (Regime(3, TWO),)
    assert found(entry(0, TWO), entry(3, FOUR)) == (Regime(0, TWO), Regime(2, GROWN), Regime(3, FOUR))
    other = Spread("out", "fnv1a", 2, 2)
    assert found(entry(0, TWO), entry(3, other)) == (Regime(0, TWO), Regime(2, None), Regime(3, other))
