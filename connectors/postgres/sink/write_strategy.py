"""The choice between the two staging strategies of a writer. Pure.

Rule: a prepared transaction must not block another transaction of the job, which may belong to an earlier epoch, or to
an aborted one that is committed with the next. So it contains only new rows that no other row references.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from kafka_eos.connectors._staged_tables.stage_names import Strategy

LONGEST_EPOCH: Final = 60.0
"""The checkpoint interval in seconds up to which "prepare" is chosen by default."""
EACH: Final = 2
"""Prepared transactions per writer: one of the epoch that is being committed, and one of the next."""


class StrategyFacts(Struct, frozen=True):
    """The facts that determine the staging strategy.

    ``keyed``: the sink has ``key=``: rows replace others.
    ``ties``: features of the table for which new rows may wait for each other.
    ``slots``: most transactions that the server allows to be prepared; ``free``: how many are free.
    ``writers``: the number of writers of the sink.
    ``interval``: seconds between checkpoints; None if unknown.
    """

    keyed: bool
    ties: tuple[str, ...]
    slots: int
    free: int
    writers: int
    interval: float | None


def choose_strategy(asked: Strategy | None, facts: StrategyFacts) -> Strategy:
    """Return the staging strategy. The user's choice ``asked`` wins, but may be refused; see ``obstacles``."""
    if asked is not None:
        return asked
    return Strategy.STAGE if [*reasons_to_stage(None, facts)] else Strategy.PREPARE


def reasons_to_stage(asked: Strategy | None, facts: StrategyFacts) -> Iterator[str]:
    """Yield the reasons for staging tables, for display."""
    if asked is Strategy.STAGE:
        yield 'strategy="stage" says so'
        return
    yield from obstacles(facts)
    yield from _doubts(facts)


def obstacles(facts: StrategyFacts) -> Iterator[str]:
    """Yield reasons why transactions cannot be prepared here, each with the remedy.

    A setting of the server is a reason only if changing it would help: not for a sink that always stages its rows.
    """
    if facts.keyed:
        yield (
            "with key=… it replaces rows, and prepared rows stay locked: if an epoch is aborted "
            "late, its output is committed with the next one, which would wait for these locks "
            "forever"
        )
    if facts.ties:
        yield (
            f"its table has {', '.join(facts.ties)}, so a new row may wait for a prepared row of "
            "an earlier epoch that is committed together with it: a deadlock"
        )
    if not (facts.slots or facts.keyed or facts.ties):
        yield "the server has max_prepared_transactions = 0, its default: set it, and restart the server"


def _doubts(facts: StrategyFacts) -> Iterator[str]:
    """Yield reasons not to prepare transactions unless the user asked for it."""
    if facts.slots and facts.free < EACH * facts.writers:
        yield too_few(facts)
    if facts.interval is not None and facts.interval > LONGEST_EPOCH:
        yield f"a transaction would last as long as an epoch, {facts.interval:g} s"


def too_few(facts: StrategyFacts) -> str:
    """Return the message about the free and the needed prepared transactions."""
    return (
        f"{facts.free} of the server's max_prepared_transactions = {facts.slots} are free, and {facts.writers} writers "
        f"may have {EACH * facts.writers} prepared"
    )


_STAGED: Final = (
    "each row is written twice: first to a staging table, and at the commit to the "
    "table, which makes the commit slower",
    "system catalogs grow by one table per writer and epoch, until autovacuum removes them",
)
_PREPARED: Final = (
    "an open transaction as long as an epoch holds back vacuum in the database",
    "a job that is killed leaves prepared transactions, which lock the table against ALTER TABLE and TRUNCATE until it "
    "starts again, or until kafka-eos doctor --resolve",
)


def trade_offs(asked: Strategy | None, keyed: bool) -> tuple[str, ...]:
    """Return the trade-offs of the strategy, for display; of both if only the server's facts decide."""
    locks = "the commit locks the rows of its keys while it lasts; no lock is held before or after it"
    if keyed:
        return (*_STAGED, locks)
    if asked is Strategy.STAGE:
        return (*_STAGED, "no lock is held before or after a commit")
    if asked is Strategy.PREPARE:
        return _PREPARED
    staged = (f"where rows are staged: {each}" for each in _STAGED)
    return (*staged, *(f"where transactions are prepared: {each}" for each in _PREPARED))
