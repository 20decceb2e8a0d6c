"""Exactly-once Kafka pipelines in a few lines of typed Python, and the audit that proves it.

Rule: a name is imported on first use, so that ``kafka-eos --help`` does not load modules that it does not need.
"""

from __future__ import annotations

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_eos.abc.state import Ttl
    from kafka_eos.api import (
        Broadcast,
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
        KeyedBroadcastConnectedStream,
        KeyedStream,
        Pipeline,
        Stream,
        Table,
        VersionedTable,
        WindowedStream,
        agg,
        connect,
    )
    from kafka_eos.core.errors import (
        Bug,
        CommittableLost,
        ConfigError,
        CorruptCheckpoint,
        EnvironmentFailed,
        Fatal,
        Fenced,
        InputLost,
        JobLocked,
        KafkaEosError,
        LossCause,
        PlanError,
        PoisonRecord,
        RestartFromCheckpoint,
        Retryable,
        TooManyDeadLetters,
        UserError,
    )
    from kafka_eos.core.windows import Window, Windowed
    from kafka_eos.plan import DerivedNameWarning
    from kafka_eos.plan.broadcast_functions import (
        BroadcastContext,
        BroadcastProcessFunction,
        BroadcastState,
        KeyedBroadcastContext,
        KeyedBroadcastProcessFunction,
    )
    from kafka_eos.plan.pattern import Pattern
    from kafka_eos.plan.process_functions import (
        AggregatingState,
        CoProcessFunction,
        Counter,
        ListState,
        MapState,
        OutputTag,
        ProcessContext,
        ProcessFunction,
        ReducingState,
        Timers,
        ValueState,
    )
    from kafka_eos.plan.retries import breaker, retries
    from kafka_eos.plan.triggers import on_clock, on_count
    from kafka_eos.plan.watermarks import WatermarkStrategy, bounded, generated, monotonic
    from kafka_eos.plan.window_assigners import days, global_, rows, session, sliding, tumbling

__version__ = "0.1.0"

__all__ = [
    "AggregatingState",
    "Broadcast",
    "BroadcastConnectedStream",
    "BroadcastContext",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "Bug",
    "CoProcessFunction",
    "CommittableLost",
    "ConfigError",
    "ConnectedStreams",
    "Counter",
    "CorruptCheckpoint",
    "DerivedNameWarning",
    "EnvironmentFailed",
    "Fatal",
    "Fenced",
    "InputLost",
    "JobLocked",
    "KafkaEosError",
    "LossCause",
    "ValueState",
    "KeyedBroadcastConnectedStream",
    "KeyedBroadcastContext",
    "KeyedBroadcastProcessFunction",
    "KeyedStream",
    "ListState",
    "MapState",
    "OutputTag",
    "Pattern",
    "Pipeline",
    "PlanError",
    "PoisonRecord",
    "ProcessContext",
    "ProcessFunction",
    "ReducingState",
    "RestartFromCheckpoint",
    "Retryable",
    "Stream",
    "Table",
    "Timers",
    "TooManyDeadLetters",
    "Ttl",
    "UserError",
    "VersionedTable",
    "WatermarkStrategy",
    "Window",
    "Windowed",
    "WindowedStream",
    "__version__",
    "agg",
    "bounded",
    "breaker",
    "connect",
    "days",
    "generated",
    "global_",
    "monotonic",
    "on_clock",
    "on_count",
    "retries",
    "rows",
    "session",
    "sliding",
    "tumbling",
]

_NAMES_BY_MODULE = {
    "abc.state": ("Ttl",),
    "api": (
        "Broadcast", "BroadcastConnectedStream", "BroadcastStream", "ConnectedStreams", "KeyedBroadcastConnectedStream",
        "KeyedStream", "Pipeline", "Stream", "Table", "VersionedTable", "WindowedStream", "agg",
        "connect",
    ),
    "core.errors": (
        "Bug", "CommittableLost", "ConfigError", "CorruptCheckpoint", "EnvironmentFailed", "Fatal", "Fenced",
        "InputLost", "JobLocked", "KafkaEosError", "LossCause", "PlanError", "PoisonRecord", "RestartFromCheckpoint",
        "Retryable", "TooManyDeadLetters", "UserError",
    ),
    "core.windows": ("Window", "Windowed"),
    "plan": ("DerivedNameWarning",),
    "plan.broadcast_functions": (
        "BroadcastContext", "BroadcastProcessFunction", "BroadcastState", "KeyedBroadcastContext",
        "KeyedBroadcastProcessFunction",
    ),
    "plan.pattern": ("Pattern",),
    "plan.process_functions": (
        "AggregatingState", "CoProcessFunction", "Counter", "ValueState", "ListState", "MapState", "OutputTag",
        "ProcessContext", "ProcessFunction", "ReducingState", "Timers",
    ),
    "plan.retries": ("breaker", "retries"),
    "plan.triggers": ("on_clock", "on_count"),
    "plan.watermarks": ("WatermarkStrategy", "bounded", "generated", "monotonic"),
    "plan.window_assigners": ("days", "global_", "rows", "session", "sliding", "tumbling"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
_importing = RLock()
"""Held during an import: two threads that import a package from different modules may see it half initialized."""


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _importing:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value
