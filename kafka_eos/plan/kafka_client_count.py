"""The number of Kafka clients in a worker, and each client's share of the worker's memory for them.

Pure. Every worker runs every source and every sink, so the number is the same in all of them.
"""

from __future__ import annotations

import json

from kafka_eos.plan.plan import Plan


def kafka_share(plan: Plan, memory: int) -> int:
    """Return the bytes of one share of ``memory``.

    A source gets one share, for read-ahead; a producer two, for its queue.
    """
    return memory // max(1, _consumers(plan) + 2 * _producers(plan))


def _consumers(plan: Plan) -> int:
    """Return one consumer per source."""
    return sum(source.source.describe().get("connector") == "kafka" for source in plan.sources)


def _producers(plan: Plan) -> int:
    """Return one producer per at-least-once sink; exactly-once sinks with the same settings share one.

    Producers of sealed or future epochs have nothing to send and hold no memory.
    """
    found: set[str] = set()
    for sink in plan.sinks:
        description = dict(sink.sink.describe())
        if description.get("connector") != "kafka":
            continue
        if description.get("delivery") == "exactly-once":
            del description["topic"]
        else:
            description["operator"] = sink.name
        found.add(json.dumps(description, sort_keys=True, default=str))
    return len(found)
