"""The embedded engine: a supervisor process, worker processes, checkpoints by barriers. No cluster."""

from kafka_eos.embedded.run import run

__all__ = ["run"]
