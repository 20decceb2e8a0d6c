"""Which sources wait for which tables: the rows of a stream that are joined with a table come when it is whole.

Pure. A table is whole when its splits are read up to where they ended at the job's first start. That end stands in the
position of each of its splits, beside what the connector knows, and so does whether it was reached: so it is in every
checkpoint, and goes with its split to whoever reads it next. A split that is found later has no end to wait for.

Rules: what counts are the positions of an epoch that is decided, and an epoch that is decided while anybody waits has
left nothing under way. So rows of a table up to its end are in the state of its joins before a row of the stream is
read, whoever reads it, with however many workers; and a table that is whole stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka_eos.interfaces import Position, Positions

FIELD = "table"
"""Of a position; no connector may call a part of its own so."""
_UNTIL, _WHOLE = "until", "whole"


def begun(positions: Positions, ends: Positions) -> Positions:
    """Where the splits of a table are read first, and up to where each is to be read before it is whole."""
    return {split: _with_end(at, ends[split]) if split in ends else at for split, at in positions.items()}


def _with_end(at: Position, end: Position) -> Position:
    return {**at, FIELD: {_UNTIL: end, _WHOLE: at == end}}


def plain(positions: Positions) -> Positions:
    """The positions as their connector knows them."""
    return {split: {part: of for part, of in at.items() if part != FIELD} for split, at in positions.items()}


def restored(positions: Positions, known: Positions) -> Positions:
    """Positions as their connector knows them, with what ``known`` says of the ends of their splits."""
    return {
        split: {**at, FIELD: known[split][FIELD]} if FIELD in known.get(split, {}) else at
        for split, at in positions.items()
    }


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


def waiting(meets: Mapping[str, Collection[str]], positions: Mapping[str, Positions]) -> frozenset[str]:
    """Sources that are not read yet. ``meets``: by source, the tables that its rows may be joined with.

    ``positions``: of the newest epoch that is decided.
    """
    filling = {source for source, splits in positions.items() if any(end_of(at) is not None for at in splits.values())}
    return frozenset(source for source, tables in meets.items() if filling.intersection(tables))
