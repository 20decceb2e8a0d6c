"""The queries named in NEXMARK_QUERIES (q0,q5 …; by default all) as one pipeline: ``kafka-eos run`` takes this file.

NEXMARK_INPUTS     what the names of the topics persons, auctions and bids begin with; default: nexmark-
NEXMARK_OUTPUTS    what those of the outputs begin with, before the name of the query; default: nexmark-
NEXMARK_JOB        the name of the job; default: nexmark
NEXMARK_Q12_MS     the size of q12's windows; default: 10000
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.queries.q12 import q12
from kafka_eos import Pipeline

_QUERIES: Mapping[str, Callable[[Events, str], None]] = {
    **QUERIES,
    "q12": partial(q12, size_ms=int(os.environ.get("NEXMARK_Q12_MS", "10000"))),
}

pipeline = Pipeline(os.environ.get("NEXMARK_JOB", "nexmark"))
_events = Events(pipeline, os.environ.get("NEXMARK_INPUTS", "nexmark-"))
for _name in os.environ.get("NEXMARK_QUERIES", ",".join(QUERIES)).split(","):
    _QUERIES[_name](_events, os.environ.get("NEXMARK_OUTPUTS", "nexmark-") + _name)

if __name__ == "__main__":
    pipeline.run()
