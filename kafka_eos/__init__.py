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
from kafka_eos.interfaces import Ttl
from kafka_eos.operators.functions import (
    AggregatingState,
    KeyState,
    ListState,
    MapState,
    ProcessContext,
    ProcessFunction,
    ReducingState,
)
from kafka_eos.plan import DerivedNameWarning

__version__ = "0.1.0"

__all__ = [
    "AggregatingState",
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
    "ListState",
    "MapState",
    "Pipeline",
    "PlanError",
    "PoisonRecord",
    "ProcessContext",
    "ProcessFunction",
    "ReducingState",
    "RestartFromCheckpoint",
    "Retryable",
    "Stream",
    "Ttl",
    "UserError",
    "__version__",
]
