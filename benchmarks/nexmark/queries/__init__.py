"""Nexmark's queries as pipelines, one file each: a function of the events and of the topic that it writes.

q0 to q2 look at one row, q3 and q20 join for ever, q4, q6 and q9 follow auctions to their end, q5, q7, q8, q11 and q12
have windows, q18 and q19 keep the last and the best of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.queries.q0 import q0
from benchmarks.nexmark.queries.q1 import q1
from benchmarks.nexmark.queries.q2 import q2
from benchmarks.nexmark.queries.q3 import q3
from benchmarks.nexmark.queries.q4 import q4
from benchmarks.nexmark.queries.q5 import q5
from benchmarks.nexmark.queries.q6 import q6
from benchmarks.nexmark.queries.q7 import q7
from benchmarks.nexmark.queries.q8 import q8
from benchmarks.nexmark.queries.q9 import q9
from benchmarks.nexmark.queries.q11 import q11
from benchmarks.nexmark.queries.q12 import q12
from benchmarks.nexmark.queries.q18 import q18
from benchmarks.nexmark.queries.q19 import q19
from benchmarks.nexmark.queries.q20 import q20

QUERIES: Final[Mapping[str, Callable[[Events, str], None]]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q12, q18, q19, q20)
}
"""By name: ``query(events, topic)`` adds it to the pipeline of the events."""
