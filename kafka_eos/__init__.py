"""Exactly-once Kafka pipelines in a few lines of typed Python, and the audit that proves it."""

from kafka_eos.dsl import KeyedStream, Pipeline, Stream
from kafka_eos.errors import (
    Bug,
    CommittableLost,
    ConfigError,
    CorruptCheckpoint,
    Fatal,
    Fenced,
    InputLost,
    JobLocked,
    KafkaEosError,
    PlanError,
    PoisonRecord,
    RestartFromCheckpoint,
    Retryable,
    UserError,
)
from kafka_eos.operators.functions import KeyState, ProcessContext, ProcessFunction
from kafka_eos.plan import DerivedNameWarning

__version__ = "0.1.0"

__all__ = [
    "Bug",
    "CommittableLost",
    "ConfigError",
    "CorruptCheckpoint",
    "DerivedNameWarning",
    "Fatal",
    "Fenced",
    "InputLost",
    "JobLocked",
    "KafkaEosError",
    "KeyState",
    "KeyedStream",
    "Pipeline",
    "PlanError",
    "PoisonRecord",
    "ProcessContext",
    "ProcessFunction",
    "RestartFromCheckpoint",
    "Retryable",
    "Stream",
    "UserError",
    "__version__",
]
