"""Stored state without the job that wrote it: list it, read it, and make a new savepoint with other content.

    snapshot = Snapshot.open("orders.savepoints/20260131T120000Z-0a1b2c3d")
    for key, value in snapshot.read("total"): ...
    builder = SavepointBuilder.from_snapshot(snapshot)
    builder.put("total", "accumulator", "a7", {"updates": 12, "accumulator": {"total": 90, "last": 4}})
    builder.write("fixed")

Neither the user's classes nor a broker, a running job or a JVM is needed. This is the front door: the rooms behind it
are ``snapshot`` and ``builder``.
"""

from kafka_eos.savepoints.builder import SavepointBuilder
from kafka_eos.savepoints.snapshot import Snapshot

__all__ = ["SavepointBuilder", "Snapshot"]
