"""The contract of a source, as checks that every implementation must pass.

    def test_my_source(tmp_path):
        check_source(lambda: SourceUnderTest(lambda: MySource(filled(tmp_path)), values=["a", "b", "c", "d"]))

Each check gets a fresh input and states its claim in its docstring. Rule: a check looks only through the source's own
interface, and every position goes through JSON before a reader continues from it, as a checkpoint does to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kafka_eos.abc.services import Services
from kafka_eos.abc.source import Reader
from kafka_eos.core.errors import InputLost, PoisonRecord
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.testing.sink_harness import ContractBroken, expect, name_violation
from kafka_eos.testing.source_harness import Place, SourceHarness, SourceRow, SourceUnderTest, through_json
from kafka_eos.testing.source_schedules import run_schedule

__all__ = ["SOURCE_CHECKS", "SourceUnderTest", "check_source"]

_AT_A_TIME: Final = 2
"""Records a poll: few, so that there are positions in the middle."""


def check_source(fresh: Callable[[], SourceUnderTest], *names: str, seeds: Iterable[int] = range(3)) -> None:
    """Run the named checks (default: all that fit), each on a new input from ``fresh``.

    ``seeds``: the check "schedules" draws one schedule from each. A failure names the seed that repeats it.

    Raises ContractBroken, which starts with the name and claim of the check that failed.
    """
    schedules = [*seeds]
    for name in names or SOURCE_CHECKS:
        check = SOURCE_CHECKS[name]
        for seed in schedules if name in _DRAWN else [0]:
            target = fresh()
            if names or _fits(name, target):
                with SourceHarness(target, seed) as trial, name_violation(name, check):
                    check(trial)


def _fits(name: str, target: SourceUnderTest) -> bool:
    """Return whether a check applies to this source and to what the test provides."""
    needed = _NEEDS.get(name)
    return needed is None or getattr(target, needed) is not None


# ---------------------------------------------------------------- reading


def _reads_all(trial: SourceHarness) -> None:
    """A reader returns every record up to the ends, each once, in batches that are not larger than asked for."""
    found, ends = trial.discover(), trial.ends()
    reader = trial.reader(found)
    rows: list[SourceRow] = []
    for some in trial.polls(reader, ends, _AT_A_TIME):
        expect(len(some) <= _AT_A_TIME, f"poll({_AT_A_TIME}, …) returned {len(some)} rows")
        rows += some
    trial.expect_values(rows, trial.values, "up to the ends")
    expect(reader.poll(_AT_A_TIME, 0.0) is None, "poll must return None when there is nothing more to read")


def _origins(trial: SourceHarness) -> None:
    """A record has an origin of its own, which grows within a split and is the same when it is read again."""
    splits = trial.discover()
    first, again = (trial.read_all(trial.reader(splits)) for _ in range(2))
    places = [row.place for row in first]
    for topic, partition, _ in places:
        expect(
            f"{topic}/{partition}" in splits, f"a record is of {topic}/{partition}, which is not a split: {[*splits]}"
        )
    expect(len({*places}) == len(places), f"two records have the same topic, partition and offset: {sorted(places)}")
    for split in {place[:2] for place in places}:
        offsets = [place[2] for place in places if place[:2] == split]
        expect(offsets == sorted(offsets), f"offsets of {split} do not grow in the order of reading: {offsets}")
    expect(
        {row.place: row.value for row in first} == {row.place: row.value for row in again},
        "a second reader found other records at the same topic, partition and offset",
    )


def _replays(trial: SourceHarness) -> None:
    """Check that from the position behind each record another reader returns exactly the rest, in the same order."""
    reader, ends = trial.reader(trial.discover()), trial.ends()
    read: list[SourceRow] = []
    stages = [(0, through_json(reader.positions()))]
    for some in trial.polls(reader, ends, 1):
        read += some
        stages.append((len(read), through_json(reader.positions())))
    reader.close()
    for before, positions in stages:
        rest = trial.read_all(trial.reader(positions), ends)
        trial.expect_rows(rest, read[before:], f"read on from {positions}, after {before} of {len(read)} records")


def _position_of_a_poll(trial: SourceHarness) -> None:
    """Positions count what poll has returned, not what was fetched: asked twice they are the same."""
    reader = trial.reader(trial.discover())
    before = reader.positions()
    expect(before == reader.positions(), "positions() changed without a poll")
    expect(through_json(before) == before, f"positions change when they pass through JSON: {before}")
    rows = trial.read_next_rows(reader, 1)
    after = reader.positions()
    expect(after != before, f"positions did not move past {rows}")
    expect(after == reader.positions(), "positions() changed without a poll")


# ---------------------------------------------------------------- splits


def _known_splits_stay(trial: SourceHarness) -> None:
    """Check that ``discover`` returns every split that it is given with its position, whatever has been read."""
    reader = trial.reader(trial.discover())
    trial.read_next_rows(reader, 1)
    known = through_json(reader.positions())
    found = trial.discover(known)
    expect(
        {split: found.get(split) for split in known} == known,
        f"discover must return known positions unchanged: was given {known}, returned {found}",
    )


def _subtasks(trial: SourceHarness) -> None:
    """Several readers share the splits; together they return each record once."""
    found = trial.discover()
    shares = [{split: found[split]} for split in found]
    ends = trial.ends()
    rows: list[SourceRow] = []
    for subtask, share in enumerate(shares):
        mine = {split: end for split, end in ends.items() if split in share}
        rows += trial.read_all(trial.reader(share, subtask, len(shares)), mine)
    trial.expect_values(rows, trial.values, "with a reader for each split")


def _assigned_later(trial: SourceHarness) -> None:
    """A split that is assigned while the reader runs is read from the position that it is given."""
    found, ends = trial.discover(), trial.ends()
    reader = trial.reader({})
    expect(reader.poll(_AT_A_TIME, 0.0) is None, "a reader without splits returned rows")
    for split, position in found.items():
        reader.assign({split: position})
    expect({*reader.positions()} == {*found}, "positions() must name every split that is assigned")
    trial.expect_values(trial.read_all(reader, ends), trial.values, "with splits that were assigned later")


def _pause(trial: SourceHarness) -> None:
    """Check that a paused split returns nothing, not even fetched records, and then resumes where it was."""
    reader, ends = trial.reader(trial.discover()), trial.ends()
    first = trial.read_next_rows(reader, 1)
    at = reader.positions()
    reader.pause([*at])
    for _ in range(3):
        rows = trial.poll(reader, _AT_A_TIME, 0.05)
        expect(not rows, f"a reader whose splits are all paused returned {rows}")
    expect(reader.positions() == at, "positions of splits that are paused moved")
    reader.pause([])
    trial.expect_values(first + trial.read_all(reader, ends), trial.values, "after a pause")


def _at_end(trial: SourceHarness) -> None:
    """Check ``at_end`` and ``lag``.

    At the end ``at_end`` names every split, and ``lag`` is 0. Before the end ``at_end`` names no split with unread
    records, and ``lag`` is not 0.
    """
    reader, ends = trial.reader(trial.discover()), trial.ends()
    trial.read_next_rows(reader, 1)
    early = {split for split in reader.list_splits_at_end() if not reader.has_reached({split: ends[split]})}
    expect(not early, f"at_end names splits that have more to read: {early}")
    if not reader.has_reached(ends):
        expect(reader.lag() != 0, "lag() is 0 while there is more to read")
    trial.read_all(reader, ends)
    deadline = time.monotonic() + trial.target.timeout
    while {*reader.list_splits_at_end()} != {*ends} and time.monotonic() < deadline:
        trial.poll(reader, _AT_A_TIME, 0.05)
    expect(
        {*reader.list_splits_at_end()} == {*ends},
        f"at_end names {sorted(reader.list_splits_at_end())}, not all of {sorted(ends)}",
    )
    expect(reader.lag() in (0, None), f"lag() is {reader.lag()} at the end")


# ---------------------------------------------------------------- ends


def _ends_stay(trial: SourceHarness) -> None:
    """A second call of ends, while nothing is added, gives the same; positions at the ends have reached them."""
    ends = trial.ends()
    expect(through_json(ends) == trial.ends(), "ends changed while nothing was added")
    reader = trial.reader(trial.discover())
    expect(not reader.has_reached(ends), "a reader that has read nothing reports that it has reached the ends")
    expect(reader.has_reached(reader.positions()), "a reader that has read nothing has not reached its own positions")
    trial.read_all(reader, ends)
    expect(reader.has_reached(reader.positions()), "a reader at the ends has not reached its own positions")
    again = trial.reader(through_json(reader.positions()))
    expect(again.has_reached(ends), "a reader at the positions of one that has reached the ends has not reached them")


def _grows(trial: SourceHarness) -> None:
    """Check that added input is found: by the reader at the end, by ``discover``, and by a later reader."""
    known = trial.discover()
    reader, ends = trial.reader(known), trial.ends()
    trial.expect_values(trial.read_all(reader, ends), trial.values, "before the input grew")
    old = through_json(reader.positions())
    added = trial.append()
    found = trial.discover(old)
    new, later = {split: at for split, at in found.items() if split not in old}, trial.ends()
    early = {split for split in new if later[split] != new[split] and reader.has_reached({split: later[split]})}
    expect(not early, f"a reader reports that it has reached the ends of {early}, which it was not assigned")
    reader.assign(new)
    rows: list[SourceRow] = []
    for some in trial.polls(reader, later, 1):
        rows += some
        more = {row.split for row in some if not reader.has_reached({row.split: later[row.split]})}
        expect(
            more.isdisjoint(reader.list_splits_at_end()), f"at_end names {more}, which has grown, and has more to read"
        )
    trial.expect_values(rows, added, "by a reader that was at the end when the input grew")
    trial.expect_values(trial.read_all(trial.reader(found), later), added, "from the positions before the input grew")


def _bounded(trial: SourceHarness) -> None:
    """A source with an end says the same end after every poll, and no reader returns a record behind it."""
    source = trial.source()
    if (bounds := source.bounds(known := trial.discover())) is None:
        return
    added = trial.append()
    reader = trial.reader(known)
    rows: list[SourceRow] = []
    for some in trial.polls(reader, bounds, _AT_A_TIME):
        rows += some
        resumed_bounds = source.bounds(through_json(reader.positions()))
        expect(resumed_bounds == bounds, f"the end was {bounds}, and after {len(rows)} records it is {resumed_bounds}")
    expect(not trial.poll(reader, _AT_A_TIME, 0.1), f"a record behind the end was returned, as one of {added}")
    trial.expect_values(rows, trial.values, "up to the end of a bounded source")


# ---------------------------------------------------------------- a whole job


def _schedules(trial: SourceHarness) -> None:
    """Run random schedules: a job that rolls back to a decided epoch reads exactly the rest."""
    run_schedule(trial, trial.seed)


# ---------------------------------------------------------------- faults


def _refused(trial: SourceHarness) -> None:
    """A record that cannot be decoded is given to ``reject_record``, once; if that raises, it is not passed."""
    values = [*trial.values, *trial.spoil()]
    found, ends, refused = trial.discover(), trial.ends(), list[Place]()
    reader = trial.reader(found, services=_taking(refused))
    rows: list[SourceRow] = []
    stages = [(0, 0, through_json(reader.positions()))]
    for some in trial.polls(reader, ends, 1):
        rows += some
        stages.append((len(rows), len(refused), through_json(reader.positions())))
    trial.expect_values(rows, values, "beside records that are rejected")
    places = [*refused, *(row.place for row in rows)]
    expect(bool(refused), "no record was rejected: SourceUnderTest.spoil must add one that cannot be decoded")
    expect(len({*places}) == len(places), f"a record was rejected twice, or returned as well: {sorted(places)}")

    def expect_the_rest(read: Sequence[SourceRow], passed: Sequence[Place], positions: Positions) -> None:
        again: list[Place] = []
        rest = trial.read_all(trial.reader(positions, services=_taking(again)), ends)
        when = f"read on from {positions}, after {len(read)} records and {len(passed)} that were refused"
        left = {row.place for row in rows} - {row.place for row in read}
        trial.expect_rows(rest, [row for row in rows if row.place in left], when)
        due = sorted({*refused}.difference(passed))
        expect(sorted(again) == due, f"{when}: {sorted(again)} were rejected, not {due}")

    for read, passed, positions in stages:
        expect_the_rest(rows[:read], refused[:passed], positions)
    stopping, before = trial.reader(found), list[SourceRow]()
    for _ in range(2):  # a second poll must not pass what has stopped the first one
        before += _until_stopped(trial, stopping)
        expect_the_rest(before, [], through_json(stopping.positions()))


def _until_stopped(trial: SourceHarness, reader: Reader[Any]) -> list[SourceRow]:
    """Poll until a record stops the job; returns the rows that came before."""
    rows: list[SourceRow] = []
    try:
        while True:
            rows += trial.read_next_rows(reader, 1)
    except PoisonRecord:
        return rows


def _taking(refused: list[Place]) -> Services:
    """Return services that collect records that cannot be decoded in the list, so that the job continues."""
    return Services(lambda operator, raw, error: refused.append((raw.topic, raw.partition, raw.offset)))


def _input_lost(trial: SourceHarness) -> None:
    """Input that the job still needs and that is gone is InputLost, at the next start or when it is read."""
    reader = trial.reader(trial.discover())
    trial.read_next_rows(reader, 1)
    known = through_json(reader.positions())
    reader.close()
    trial.expire()
    try:
        trial.read_all(trial.reader(trial.discover(known)))
    except InputLost:
        return
    raise ContractBroken("the input at this position is gone, but InputLost was not raised")


def _completed_is_idempotent(trial: SourceHarness) -> None:
    """`completed` may be called twice and for an old epoch; reading does not change."""
    reader, ends = trial.reader(trial.discover()), trial.ends()
    first = trial.read_next_rows(reader, 1)
    at = through_json(reader.positions())
    for epoch in (2, 2, 1):
        trial.source().notify_committed(trial.context, EpochId(Epoch(epoch), Term(1)), at)
    trial.expect_values(first + trial.read_all(trial.reader(at), ends), trial.values, "after completed")


SOURCE_CHECKS: Mapping[str, Callable[[SourceHarness], None]] = MappingProxyType(
    {
        "reads-all": _reads_all,
        "origins": _origins,
        "replays": _replays,
        "positions": _position_of_a_poll,
        "known-splits-stay": _known_splits_stay,
        "subtasks": _subtasks,
        "assigned-later": _assigned_later,
        "pause": _pause,
        "at-end": _at_end,
        "ends-stay": _ends_stay,
        "grows": _grows,
        "bounded": _bounded,
        "schedules": _schedules,
        "refused": _refused,
        "input-lost": _input_lost,
        "completed": _completed_is_idempotent,
    }
)
"""Every check by name; for ``pytest.mark.parametrize``."""

_NEEDS: Mapping[str, str] = MappingProxyType(
    {"grows": "append", "bounded": "append", "refused": "spoil", "input-lost": "expire"}
)
"""Checks that need more of the test: the field of ``SourceUnderTest``."""

_DRAWN: Final = frozenset({"schedules"})
"""Checks that are run once for each seed."""
