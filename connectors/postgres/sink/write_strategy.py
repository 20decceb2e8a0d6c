"""Which of the two strategies a writer uses. Pure.

Rule: a prepared transaction must not be able to keep another one of the job waiting, which may be of an earlier epoch,
or of one that is given up and is committed with the next. So it holds nothing but new rows that no other row knows of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kafka_eos.connectors._staged_tables.stage_names import Strategy

LONGEST_EPOCH: Final = 60.0
"""Seconds between checkpoints up to which a transaction as long as an epoch is begun without being asked for."""
EACH: Final = 2
"""Transactions that a writer may have prepared: one of an epoch that is being committed, and that of the next."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice depends on.

    ``keyed``     the sink has ``key=``: rows replace others
    ``ties``      what the table has for which new rows may wait for each other
    ``slots``     transactions that the server lets be prepared; ``free``: how many are not taken
    ``writers``   of the sink
    ``interval``  seconds between checkpoints; None where nobody says
    """

    keyed: bool
    ties: tuple[str, ...]
    slots: int
    free: int
    writers: int
    interval: float | None


def chosen(asked: Strategy | None, facts: Facts) -> Strategy:
    """The strategy of a sink. ``asked``: what its user says, who may be refused; see ``obstacles``."""
    if asked is not None:
        return asked
    return Strategy.STAGE if [*reasons_to_stage(None, facts)] else Strategy.PREPARE


def reasons_to_stage(asked: Strategy | None, facts: Facts) -> Iterator[str]:
    """Why rows are staged, for people."""
    if asked is Strategy.STAGE:
        yield 'strategy="stage" says so'
        return
    yield from obstacles(facts)
    yield from _doubts(facts)


def obstacles(facts: Facts) -> Iterator[str]:
    """Why transactions cannot be prepared here, each with what to do about it."""
    if facts.keyed:
        yield (
            "with key=… it replaces rows, and those of a prepared transaction stay locked: an epoch that is given up "
            "late goes with the next one, which would wait for its rows for ever"
        )
    if facts.ties:
        yield (
            f"its table has {', '.join(facts.ties)}, for which a new row may wait for one of an earlier epoch that is "
            "prepared, and only goes with this one"
        )
    if not facts.slots:
        yield "the server has max_prepared_transactions = 0, its default: set it, and restart the server"


def _doubts(facts: Facts) -> Iterator[str]:
    """Why nobody should do it who was not asked to."""
    if facts.slots and facts.free < EACH * facts.writers:
        yield too_few(facts)
    if facts.interval is not None and facts.interval > LONGEST_EPOCH:
        yield f"a transaction would last as long as an epoch, {facts.interval:g} s"


def too_few(facts: Facts) -> str:
    """How many transactions can be prepared, and how many may be."""
    return (
        f"{facts.free} of the server's max_prepared_transactions = {facts.slots} are free, and {facts.writers} writers "
        f"may have {EACH * facts.writers} prepared"
    )


_STAGED: Final = (
    "each row is written twice: into a staging table, and from there into the table, which takes the commit its time",
    "system catalogs grow by a table for each writer and epoch, until autovacuum has been there",
)
_PREPARED: Final = (
    "an open transaction as long as an epoch holds back vacuum in the database",
    "a job that is killed leaves prepared transactions, which lock the table against ALTER TABLE and TRUNCATE until it "
    "starts again, or until kafka-eos doctor --end",
)


def price(asked: Strategy | None, keyed: bool) -> tuple[str, ...]:
    """What the strategy costs, for people; of both if only the server's answer decides."""
    locks = "the commit locks the rows of its keys while it lasts; no lock is held before or after it"
    if keyed:
        return (*_STAGED, locks)
    if asked is Strategy.STAGE:
        return (*_STAGED, "no lock is held before or after a commit")
    if asked is Strategy.PREPARE:
        return _PREPARED
    staged = (f"where rows are staged: {each}" for each in _STAGED)
    return (*staged, *(f"where transactions are prepared: {each}" for each in _PREPARED))
