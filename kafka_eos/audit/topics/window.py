"""Which records an audit of topics reads, and which of them it judges.

Rule: all offsets were pinned at one moment without open transactions. How far the input was processed the topics do
not tell: that is the user's word (a group, a time, an earlier verdict), or all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kafka_eos.audit.cluster import Cluster, Ranges
from kafka_eos.audit.reads import Bounds
from kafka_eos.audit.topics.question import Offsets, Question
from kafka_eos.audit.topics.tables import Window
from kafka_eos.errors import ConfigError


def window(question: Question, cluster: Cluster | None, ranges: Ranges, done: Offsets | None = None) -> Window:
    """Bounds from the pinned ``ranges`` and what the question says. ConfigError for offsets that are not there.

    ``done``: what the group had committed before they were pinned. Inputs behind it are read and not judged: the
    group may be told late, and their outputs are there already.
    """
    resumed = _resumed(question)
    start, end = _edge(question, cluster, question.start, -1), _edge(question, cluster, question.end, 1)
    read: dict[str, Bounds] = {}
    judged: dict[str, Bounds] = {}
    for topic, parts in ranges.items():
        reach = done.get(topic, {}) if done is not None and topic in question.inputs else None
        wide, narrow = {}, {}
        for p, at in parts.items():
            last = at.end if reach is None else min(at.end, reach.get(p, at.begin))
            low = resumed.get(topic, {}).get(p, at.begin)
            wide[p] = _clip(low, at.end, start[1].get(topic, {}).get(p), end[1].get(topic, {}).get(p))
            narrow[p] = _clip(low, last, start[0].get(topic, {}).get(p), end[0].get(topic, {}).get(p))
            if low > at.end:
                raise ConfigError(
                    f"{topic}/{p} ends at offset {at.end}, before {low}, where the earlier audit ended: it was emptied "
                    "or made anew. Audit it from its beginning"
                )
            if wide[p][0] < at.begin:
                raise ConfigError(f"{topic}/{p} begins at offset {at.begin}: what came after {wide[p][0]} has expired")
        read[topic], judged[topic] = wide, narrow
    return Window(read, judged, {d: _files(d, question) for d in question.directories})


def _clip(low: int, high: int, start: int | None, end: int | None) -> tuple[int, int]:
    first = low if start is None else max(low, start)
    return first, max(first, high if end is None else min(high, end))


def _edge(
    question: Question, cluster: Cluster | None, at: datetime | Offsets | None, side: int
) -> tuple[Offsets, Offsets]:
    """Where judging starts (or ends), and where reading does."""
    if at is None or cluster is None:
        return {}, {}
    if isinstance(at, datetime):
        wide = at + side * timedelta(seconds=question.slack)
        return cluster.offsets_at(question.topics, at), cluster.offsets_at(question.topics, wide)
    return at, at


def _resumed(question: Question) -> dict[str, dict[int, int]]:
    if question.resume is None:
        return {}
    ends = question.resume["resume"]["ends"]
    return {topic: {int(p): at for p, at in parts.items()} for topic, parts in ends.items()}


def _files(directory: str, question: Question) -> list[str]:
    """Names of the files that readers see and that no earlier audit has read."""
    path = Path(directory)
    if not path.is_dir():
        raise ConfigError(f"{directory} is not a directory; an output with a slash in its name is one")
    known = set(question.resume["resume"]["files"].get(directory, ())) if question.resume is not None else set()
    names = sorted(f.name for f in path.iterdir() if f.is_file() and not f.name.startswith((".", "_")))
    return [name for name in names if name not in known]


def ends(window: Window, question: Question) -> dict[str, Any]:
    """What a later audit resumes from."""
    earlier: Mapping[str, Any] = {} if question.resume is None else question.resume["resume"]["files"]
    return {
        "ends": {topic: {str(p): end for p, (_, end) in bounds.items()} for topic, bounds in window.judged.items()},
        "files": {d: sorted({*earlier.get(d, ()), *names}) for d, names in window.files.items()},
    }
