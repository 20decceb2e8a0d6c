"""What a running job shows of itself; see ``coordinator.status``, which both engines use."""

from kafka_eos.coordinator.status import STATUS, Observer, StatusFile, read_status

__all__ = ["STATUS", "Observer", "StatusFile", "read_status"]
