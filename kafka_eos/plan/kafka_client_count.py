"""How many clients of Kafka a worker has for a plan, and what each may hold of the worker's memory for them.

Pure. Every worker runs every source and every sink, so this is the same in all of them.
"""

from __future__ import annotations

import json

from kafka_eos.plan.plan import Plan


def kafka_share(plan: Plan, memory: int) -> int:
    """Bytes of one share of ``memory``. A source gets one, for what it reads ahead; a producer two, for its queue."""
    return memory // max(1, _consumers(plan) + 2 * _producers(plan))


def _consumers(plan: Plan) -> int:
    """One a source."""
    return sum(source.source.describe().get("connector") == "kafka" for source in plan.sources)


def _producers(plan: Plan) -> int:
    """One a sink for at-least-once; exactly-once sinks with the same settings share one.

    Those that wait with nothing to send, because their epoch is sealed or yet to come, hold nothing.
    """
    found: set[str] = set()
    for sink in plan.sinks:
        told = dict(sink.sink.describe())
        if told.get("connector") != "kafka":
            continue
        if told.get("delivery") == "exactly-once":
            del told["topic"]
        else:
            told["operator"] = sink.name
        found.add(json.dumps(told, sort_keys=True, default=str))
    return len(found)
