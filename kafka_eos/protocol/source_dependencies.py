"""Which sources wait for which others, because these are read before them.

The rows of a stream that are joined with a table come when the table is whole. Those of a source that is ``after``
another one come when that one is read to its end.

Pure. A table is whole when its splits are read up to where they ended at the job's first start. That end stands in the
position of each of its splits, beside what the connector knows, and so does whether it was reached: so it is in every
checkpoint, and goes with its split to whoever reads it next. A split that is found later ends where it begins. The same
stands in the positions of a source that another one is after; there it is the end that the source has for good.

Beside them stands where the split was read first, and which joins have got its rows since. A join that is not among
them would look into a table without what was read before it came: see ``coordination.savepoint_start``.

Rules: what counts are the positions of an epoch that is decided, and an epoch that is decided while anybody waits has
left nothing under way. So rows of a table up to its end are in the state of its joins before a row of the stream is
read, whoever reads it, with however many workers; and a table that is whole stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.core.json_values import Json, Position, Positions

FIELD = "table"
"""Of a position; no connector may call a part of its own so."""
_FROM, _UNTIL, _WHOLE, _JOINS = "from", "until", "whole", "joins"


def begun(positions: Positions, ends: Positions, joins: Collection[str]) -> Positions:
    """Where the splits of a table are read first, up to where each is to be read before it is whole, and for whom."""
    return {split: _begun(at, ends.get(split, at), joins) for split, at in positions.items()}


def ending(positions: Positions, known: Positions, ends: Positions) -> Positions:
    """Positions of a source that another one is after, as its connector knows them, to go on from ``known``.

    A split that was read before anything was after it is to be read up to its end, like one that is new.
    """
    return {
        split: at if FIELD in at else _begun(at, ends.get(split, at), ())
        for split, at in restored(positions, known).items()
    }


def _begun(at: Position, end: Position, joins: Collection[str]) -> Position:
    return {**at, FIELD: {_FROM: at, _UNTIL: end, _WHOLE: at == end, _JOINS: list[Json](sorted(joins))}}


def resumed(positions: Positions, known: Positions, joins: Collection[str]) -> Positions:
    """Positions of a table as its connector knows them, to go on from ``known`` with the joins that there are now."""
    new = {split: at for split, at in positions.items() if split not in known}
    return {split: _fed(at, joins) for split, at in restored(positions, known).items()} | begun(new, {}, joins)


def _fed(at: Position, joins: Collection[str]) -> Position:
    said = at.get(FIELD)
    return {**at, FIELD: {**said, _JOINS: list[Json](sorted(joins))}} if isinstance(said, dict) else at


def plain(positions: Positions) -> Positions:
    """The positions as their connector knows them."""
    return {split: _plain(at) for split, at in positions.items()}


def _plain(at: Position) -> Position:
    return {part: of for part, of in at.items() if part != FIELD}


def restored(positions: Positions, known: Positions) -> Positions:
    """Positions as their connector knows them, with what ``known`` says of the ends of their splits."""
    return {
        split: {**at, FIELD: known[split][FIELD]} if FIELD in known.get(split, {}) else at
        for split, at in positions.items()
    }


def has_got_all(join: str, positions: Positions) -> bool:
    """Has the join got all that was read of a table with these positions? Also if nothing was."""
    return all(_unread(at) or join in _joins(at) for at in positions.values())


def without(positions: Positions, joins: Collection[str]) -> Positions:
    """The positions of a table when these joins have lost what they had got."""
    return {split: _fed(at, sorted({*map(str, _joins(at))}.difference(joins))) for split, at in positions.items()}


def _unread(at: Position) -> bool:
    said = at.get(FIELD)
    return isinstance(said, dict) and said.get(_FROM) == _plain(at)


def _joins(at: Position) -> Collection[Json]:
    said = at.get(FIELD)
    joins = said.get(_JOINS) if isinstance(said, dict) else None
    return joins if isinstance(joins, list) else ()


def first_end(at: Position) -> Position | None:
    """Up to where a split is, or was, to be read before streams are; None if nobody ever waits for it."""
    said = at.get(FIELD)
    if not isinstance(said, dict):
        return None
    end = said[_UNTIL]
    assert isinstance(end, dict)
    return end


def end_of(at: Position) -> Position | None:
    """Up to where a split is to be read before it is whole; None if it is."""
    said = at.get(FIELD)
    return None if not isinstance(said, dict) or said[_WHOLE] else first_end(at)


def reached(at: Position) -> Position:
    """The position of a split that has been read up to its end, or beyond."""
    said = at[FIELD]
    assert isinstance(said, dict)
    return {**at, FIELD: {**said, _WHOLE: True}}


def missing(meets: Mapping[str, Collection[str]], positions: Mapping[str, Positions]) -> dict[str, list[str]]:
    """By source, what it waits for; nothing where all of it is whole.

    ``meets``: see ``plan.Graph``. ``positions``: of the newest epoch that is decided.
    """
    filling = {source for source, splits in positions.items() if any(end_of(at) is not None for at in splits.values())}
    return {source: sorted(filling.intersection(tables)) for source, tables in meets.items()}


def waiting(meets: Mapping[str, Collection[str]], positions: Mapping[str, Positions]) -> frozenset[str]:
    """Sources that are not read yet; see ``missing``."""
    return frozenset(source for source, tables in missing(meets, positions).items() if tables)


@dataclass(frozen=True, slots=True)
class Held:
    """Sources that are held while others are read.

    ``waiting``: those that are not read yet. ``silent``: those of them that event time does not wait for.
    """

    waiting: frozenset[str]
    silent: frozenset[str]

    @classmethod
    def at_start(
        cls, meets: Mapping[str, Collection[str]], following: Collection[str], positions: Mapping[str, Positions]
    ) -> Held:
        """``following``: sources that are after others."""
        held = waiting(meets, positions)
        return cls(held, held.intersection(following))

    def decided(self, meets: Mapping[str, Collection[str]], positions: Mapping[str, Positions]) -> Held:
        """Of the epoch that was decided these are the positions.

        A source that was silent is waited for by event time first, and read an epoch later. By then every subtask has
        said that it waits for it: else one would begin, and event time would pass what another one has not begun.
        """
        left = waiting(meets, positions)
        return Held(left | (self.silent - left), self.silent & left)


def in_words(awaited: Mapping[str, Sequence[str]]) -> str:
    """``missing`` as a line for people; empty if nobody waits."""
    return "; ".join(
        f"source {source} waits until {', '.join(others)} {'is' if len(others) == 1 else 'are'} read to the end"
        for source, others in awaited.items()
        if others
    )
