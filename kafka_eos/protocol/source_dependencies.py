"""Dependencies between sources: which source waits until which others are read.

A stream that is joined with a table is read once the table is complete. A source that is ``after`` another one is read
once that one is read to its end.

Pure. A table is complete when each of its splits is read up to the position at which it ended at the job's first start.
This end, and whether it was reached, are stored in the position of each split, next to the connector's own fields. So
they are in every checkpoint, and move with the split to the subtask that reads it next. A split that is discovered
later ends where it begins. Positions of a source that another source is ``after`` have the same fields; there, the end
is the final end of the source.

The position also stores where the split was first read, and which joins have received its rows since. A join that is
not among them would lack the rows that were read before it was added: see ``coordination.savepoint_start``.

Rules: only positions of a decided epoch matter. An epoch that is decided while any source waits leaves no rows in
flight. So all rows of a table up to its end are in the state of its joins before a row of the stream is read, for any
number of workers. A table that is complete stays complete.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from kafka_eos.core.json_values import Json, Position, Positions

FIELD = "table"
"""The field of a position that this module uses; no connector may use this name for a field of its own."""
_FROM, _UNTIL, _WHOLE, _JOINS = "from", "until", "whole", "joins"


def first_positions(positions: Positions, ends: Positions, joins: Collection[str]) -> Positions:
    """Return start positions of a table, with the end at which the table is complete."""
    return {split: _begun(at, ends.get(split, at), joins) for split, at in positions.items()}


def positions_until_end(positions: Positions, known: Positions, ends: Positions) -> Positions:
    """Return positions of a source that another one waits for, with its ends.

    A split that was read before any source was ``after`` it is read up to its end, as a new split is.
    """
    return {
        split: at if FIELD in at else _begun(at, ends.get(split, at), ())
        for split, at in with_bootstrap(positions, known).items()
    }


def _begun(at: Position, end: Position, joins: Collection[str]) -> Position:
    return {**at, FIELD: {_FROM: at, _UNTIL: end, _WHOLE: at == end, _JOINS: list[Json](sorted(joins))}}


def resumed_positions(positions: Positions, known: Positions, joins: Collection[str]) -> Positions:
    """Return positions of a table that continue from ``known``, for the current joins."""
    new = {split: at for split, at in positions.items() if split not in known}
    return {split: _fed(at, joins) for split, at in with_bootstrap(positions, known).items()} | first_positions(
        new, {}, joins
    )


def _fed(at: Position, joins: Collection[str]) -> Position:
    fields = at.get(FIELD)
    return {**at, FIELD: {**fields, _JOINS: list[Json](sorted(joins))}} if isinstance(fields, dict) else at


def connector_positions(positions: Positions) -> Positions:
    """Return the positions as the connector knows them, without the fields of this module."""
    return {split: _plain(at) for split, at in positions.items()}


def _plain(at: Position) -> Position:
    return {part: of for part, of in at.items() if part != FIELD}


def with_bootstrap(positions: Positions, known: Positions) -> Positions:
    """Return connector positions with this module's fields from ``known``."""
    return {
        split: {**at, FIELD: known[split][FIELD]} if FIELD in known.get(split, {}) else at
        for split, at in positions.items()
    }


def has_seen_all(join: str, positions: Positions) -> bool:
    """Return whether a join has received every row read of a table so far. True if none was read."""
    return all(_unread(at) or join in _joins(at) for at in positions.values())


def without_joins(positions: Positions, joins: Collection[str]) -> Positions:
    """Return the positions of a table without these joins, which have lost its rows."""
    return {split: _fed(at, sorted({*map(str, _joins(at))}.difference(joins))) for split, at in positions.items()}


def _unread(at: Position) -> bool:
    fields = at.get(FIELD)
    return isinstance(fields, dict) and fields.get(_FROM) == _plain(at)


def _joins(at: Position) -> Collection[Json]:
    fields = at.get(FIELD)
    joins = fields.get(_JOINS) if isinstance(fields, dict) else None
    return joins if isinstance(joins, list) else ()


def first_end(at: Position) -> Position | None:
    """Return the position up to which a split is read before the sources that wait for it; None if none ever does."""
    fields = at.get(FIELD)
    if not isinstance(fields, dict):
        return None
    end = fields[_UNTIL]
    assert isinstance(end, dict)
    return end


def remaining_end(at: Position) -> Position | None:
    """Return the position to read up to before a split is complete; None if it is complete."""
    fields = at.get(FIELD)
    return None if not isinstance(fields, dict) or fields[_WHOLE] else first_end(at)


def mark_complete(at: Position) -> Position:
    """Return the position of a split that has been read to its end."""
    fields = at[FIELD]
    assert isinstance(fields, dict)
    return {**at, FIELD: {**fields, _WHOLE: True}}


def awaited_sources(meets: Mapping[str, Collection[str]], positions: Mapping[str, Positions]) -> dict[str, list[str]]:
    """Return, by source, the sources that it waits for.

    ``meets``: see ``plan.Graph``. ``positions``: of the newest decided epoch.
    """
    filling = {
        source for source, splits in positions.items() if any(remaining_end(at) is not None for at in splits.values())
    }
    return {source: sorted(filling.intersection(tables)) for source, tables in meets.items()}


def waiting_sources(meets: Mapping[str, Collection[str]], positions: Mapping[str, Positions]) -> frozenset[str]:
    """Return the sources that are not read yet."""
    return frozenset(source for source, tables in awaited_sources(meets, positions).items() if tables)


class WaitingSources(Struct, frozen=True):
    """The sources that are not read yet because they wait for others.

    ``waiting_sources``: those sources. ``ignored_by_watermarks``: those of them that watermarks do not wait for.
    """

    waiting_sources: frozenset[str]
    ignored_by_watermarks: frozenset[str]

    @classmethod
    def at_start(
        cls, meets: Mapping[str, Collection[str]], following: Collection[str], positions: Mapping[str, Positions]
    ) -> WaitingSources:
        """Return the sources that wait at the start of an attempt. ``following``: sources that are ``after`` others."""
        held = waiting_sources(meets, positions)
        return cls(held, held.intersection(following))

    def after_epoch(self, meets: Mapping[str, Collection[str]], positions: Mapping[str, Positions]) -> WaitingSources:
        """Return the sources that still wait after an epoch was decided.

        A source that watermarks ignored first holds back watermarks again, and is read one epoch later. By then every
        subtask has reported that it waits for the source. Otherwise one subtask could start reading while the watermark
        of another passes rows that the source has not delivered.
        """
        left = waiting_sources(meets, positions)
        return WaitingSources(left | (self.ignored_by_watermarks - left), self.ignored_by_watermarks & left)


def describe_waiting(awaited: Mapping[str, Sequence[str]]) -> str:
    """Describe which sources wait for which, in one line."""
    return "; ".join(
        f"source {source} waits until {', '.join(others)} {'is' if len(others) == 1 else 'are'} read to the end"
        for source, others in awaited.items()
        if others
    )
