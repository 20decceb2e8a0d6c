"""The records that an audit of topics reads, and those of them that it judges.

Rule: all offsets were pinned at one moment without open transactions in what is read. The topics do not contain how far
the input was processed. So the user gives it (a group, a time, an earlier verdict), or all of it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from kafka_eos.audit.cluster.cluster_admin import Offsets, Ranges
from kafka_eos.audit.cluster.cluster_pair import Clusters
from kafka_eos.audit.tables.topic_tables import Bounds
from kafka_eos.audit.topics.question import TopicAuditOptions
from kafka_eos.audit.topics.topic_tables import OffsetWindow
from kafka_eos.core.errors import ConfigError


def window(
    question: TopicAuditOptions, cluster: Clusters | None, ranges: Ranges, done: Offsets | None = None
) -> OffsetWindow:
    """Bounds from the pinned ``ranges`` and what the question says.

    ConfigError for offsets that are not there, and where expired records may have been counterparts of others.
    ``done``: what the group had committed before they were pinned. Inputs behind it are read and not judged: the
    group may be told late, and their outputs are there already.
    """
    resumed = _resumed(question)
    _check_offsets(question, ranges)
    meant = partial(_offsets, question, cluster)
    start, end = meant(question.start, 0.0), meant(question.end, 0.0)
    wide_start, wide_end = meant(question.start, -question.slack), meant(question.end, question.slack)
    read: dict[str, Bounds] = {}
    judged: dict[str, Bounds] = {}
    for topic, parts in ranges.items():
        reach = done.get(topic, {}) if done is not None and topic in question.inputs else None
        wide, narrow = {}, {}
        for p, at in parts.items():
            last = at.end if reach is None else min(at.end, reach.get(p, at.begin))
            low = resumed.get(topic, {}).get(p, 0)
            wide[p] = _clip(low, at.end, wide_start.get(topic, {}).get(p), wide_end.get(topic, {}).get(p))
            narrow[p] = _clip(low, last, start.get(topic, {}).get(p), end.get(topic, {}).get(p))
            if low > at.end:
                raise ConfigError(
                    f"{topic}/{p} ends at offset {at.end}, before {low}, where the earlier audit ended: it has lost "
                    "records. Audit it from its beginning"
                )
        read[topic], judged[topic] = wide, narrow
    if cut := _cut(question, ranges, read):
        raise ConfigError(cut)
    since = question.start - timedelta(seconds=question.slack) if isinstance(question.start, datetime) else None
    return OffsetWindow(read, judged, {d: _files(d, question) for d in question.directories}, since)


def reading_ends(question: TopicAuditOptions, cluster: Clusters) -> Offsets:
    """Return the end offsets that the question sets before the ends of the topics."""
    return _offsets(question, cluster, question.end, question.slack)


def identity(question: TopicAuditOptions, cluster: Clusters) -> dict[str, Any]:
    """Return the ids of the cluster and of the topics: others of the same names would have other ids.

    ConfigError if the earlier audit, which is resumed, read other ones: their offsets say nothing about these.
    """
    ids = dict(cluster.ids(question.topics))
    found: dict[str, Any] = {"cluster": cluster.cluster_id(), "topics": ids}
    before: Mapping[str, Any] = found if question.resume is None else question.resume["resume"].get("identity", {})
    if before == found:
        return found
    changed = [name for name, id_ in ids.items() if before.get("topics", {}).get(name) != id_]
    raise ConfigError(
        f"the earlier audit read other topics of the same names: {', '.join(changed) or 'the cluster'} was deleted and "
        "recreated, or is of another cluster. Audit without --resume"
    )


def behind(question: TopicAuditOptions, ranges: Ranges, found: OffsetWindow) -> dict[str, Bounds]:
    """Return the bounds of the committed records behind the end, where that is a time: by right none is older."""
    if not isinstance(question.end, datetime):
        return {}
    rest = {
        topic: {p: (end, at.stable) for p, at in parts.items() if (end := found.read[topic][p][1]) < at.stable}
        for topic, parts in ranges.items()
    }
    return {topic: bounds for topic, bounds in rest.items() if bounds}


def left_out(question: TopicAuditOptions, ranges: Ranges, found: OffsetWindow) -> list[str]:
    """Return the parts of inputs and outputs that neither this audit nor an earlier one judged, for the headline.

    They are counted in offsets, some of which belong to transaction markers.
    """
    texts = []
    for role, names in (("inputs", question.inputs), ("outputs", question.outputs)):
        bounds = [(at, found.judged[name][p]) for name in names for p, at in ranges.get(name, {}).items()]
        before = 0 if question.resume is not None else sum(start - at.begin for at, (start, _) in bounds)
        after = sum(at.end - end for at, (_, end) in bounds)
        parts = [f"{n:,} {where}" for n, where in ((before, "before the start"), (after, "after the end")) if n]
        if parts:
            texts.append(f"not judged: {' and '.join(parts)} of the {role} (offsets)")
    return texts


def _check_offsets(question: TopicAuditOptions, ranges: Ranges) -> None:
    """Raise ConfigError if the question names offsets that do not exist: less would be judged than requested."""
    for option, asked in (("--from", question.start), ("--to", question.end)):
        for topic, offsets in asked.items() if isinstance(asked, Mapping) else ():
            if topic not in ranges:
                raise ConfigError(
                    f"{option} names {topic!r}, which is not audited; audited topics: {', '.join(ranges)}"
                )
            for p, offset in offsets.items():
                at = ranges[topic].get(p)
                if at is None:
                    raise ConfigError(f"{option} names {topic}/{p}; the last partition is {topic}/{max(ranges[topic])}")
                if not at.begin <= offset <= at.end:
                    raise ConfigError(
                        f"{option} names offset {offset} of {topic}/{p}, which has offsets {at.begin} to {at.end}"
                    )
    if isinstance(question.start, Mapping) and isinstance(question.end, Mapping):
        for topic, offsets in question.start.items():
            for p, first in offsets.items():
                if first > (last := question.end.get(topic, {}).get(p, first)):
                    raise ConfigError(f"{topic}/{p}: --from ({first}) is after --to ({last})")


def _cut(question: TopicAuditOptions, ranges: Ranges, read: Mapping[str, Bounds]) -> str | None:
    """Return which of the requested records have expired, and what to do; None if none has.

    If a partition is read from its first record on, it is unknown whether the expired records were in the range.
    """
    timed = isinstance(question.start, datetime)
    cut = [
        f"{topic}/{p} begins at offset {at.begin}"
        for topic, parts in ranges.items()
        for p, at in parts.items()
        if at.begin > 0 and read[topic][p][0] < at.begin + timed
    ]
    if not cut:
        return None
    if question.resume is not None:
        advice = "some of them newer than the earlier audit. Audit without --resume, with a later --from"
    else:
        advice = (
            "so missing counterparts prove nothing. Set --from to a time since when nothing has expired, or to offsets "
            "from which inputs and outputs belong together"
        )
    return f"records have expired ({', '.join(cut[:8])}), {advice}"


def _clip(low: int, high: int, start: int | None, end: int | None) -> tuple[int, int]:
    first = low if start is None else max(low, start)
    return first, max(first, high if end is None else min(high, end))


def _offsets(
    question: TopicAuditOptions, cluster: Clusters | None, at: datetime | Offsets | None, slack: float
) -> Offsets:
    """Return offsets for ``at``, ``slack`` seconds after it if it is a time; {} if it is None."""
    if isinstance(at, Mapping):
        return at
    if at is None or cluster is None:
        return {}
    return cluster.offsets_at(question.topics, at + timedelta(seconds=slack))


def _resumed(question: TopicAuditOptions) -> dict[str, dict[int, int]]:
    if question.resume is None:
        return {}
    ends = question.resume["resume"]["ends"]
    return {topic: {int(p): at for p, at in parts.items()} for topic, parts in ends.items()}


def _files(directory: str, question: TopicAuditOptions) -> list[str]:
    """Return the files that readers see and that no earlier audit has read, relative to the directory. Files of
    partitions are in directories below it.
    """
    path = Path(directory)
    if not path.is_dir():
        raise ConfigError(f"{directory} is not a directory; an output with a slash in its name is one")
    known = set(question.resume["resume"]["files"].get(directory, ())) if question.resume is not None else set()
    found = (f.relative_to(path) for f in path.rglob("*") if f.is_file())
    visible = (name for name in found if not any(part.startswith((".", "_")) for part in name.parts))
    return sorted(name.as_posix() for name in visible if name.as_posix() not in known)


def ends(window: OffsetWindow, question: TopicAuditOptions, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ends that a later audit resumes from, and of which topics they are."""
    earlier: Mapping[str, Any] = {} if question.resume is None else question.resume["resume"]["files"]
    return {
        "identity": identity,
        "ends": {topic: {str(p): end for p, (_, end) in bounds.items()} for topic, bounds in window.judged.items()},
        "files": {d: sorted({*earlier.get(d, ()), *names}) for d, names in window.files.items()},
    }
