"""What both engines share: terms, decisions, commits, recovery, retention. I/O around ``protocol``."""

from kafka_eos.coordinator.coordinator import DISCOVERY_INTERVAL, Coordinator
from kafka_eos.coordinator.handover import Acked, Resumed
from kafka_eos.coordinator.patience import Interrupted, Patience

__all__ = ["DISCOVERY_INTERVAL", "Acked", "Coordinator", "Interrupted", "Patience", "Resumed"]
