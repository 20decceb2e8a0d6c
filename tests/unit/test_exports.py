"""What users import is written down here; a change is a change of the public interface."""

import kafka_eos


def test_the_public_names_are_these() -> None:
    errors = {
        "Bug", "CommittableLost", "ConfigError", "CorruptCheckpoint", "EnvironmentFailed", "Fatal", "Fenced",
        "InputLost", "JobLocked", "KafkaEosError", "PlanError", "PoisonRecord", "RestartFromCheckpoint", "Retryable",
        "TooManyDeadLetters", "UserError",
    }  # fmt: skip
    verbs = {
        "KeyState",
        "KeyedStream",
        "OutputTag",
        "Pattern",
        "Pipeline",
        "ProcessContext",
        "ProcessFunction",
        "Stream",
    }
    joins = {"CoProcessFunction", "ConnectedStreams", "Table", "VersionedTable", "connect"}
    broadcasts = {
        "Broadcast", "BroadcastConnected", "BroadcastContext", "BroadcastProcessFunction", "BroadcastState",
        "BroadcastStream", "KeyedBroadcastConnected", "KeyedBroadcastContext", "KeyedBroadcastProcessFunction",
    }  # fmt: skip
    states = {"AggregatingState", "Counter", "ListState", "MapState", "ReducingState", "Ttl"}
    time = {"Timers", "WatermarkStrategy", "bounded", "generated", "monotonic"}
    windows = {"Window", "Windowed", "WindowedStream", "days", "global_", "rows", "session", "sliding", "tumbling"}
    windows |= {"on_clock", "on_count"}
    requests = {"breaker", "retries"}

    others = {"DerivedNameWarning", "__version__"}

    assert set(kafka_eos.__all__) == errors | verbs | joins | broadcasts | states | time | windows | requests | others


def test_every_public_name_exists_and_is_documented() -> None:
    missing = [name for name in kafka_eos.__all__ if name != "__version__" and not getattr(kafka_eos, name).__doc__]

    assert missing == []
