"""What users import is written down here; a change is a change of the public interface."""

import subprocess
import sys

import kafka_eos

TWO_THREADS = """
import sys, threading, time
import kafka_eos

def ask(name):
    try:
        getattr(kafka_eos, name)
    except BaseException as error:
        print(name, repr(error))

threads = [threading.Thread(target=ask, args=(name,)) for name in sys.argv[1:]]
for thread in threads:
    thread.start()
    time.sleep(0.01)
for thread in threads:
    thread.join()
"""


def test_the_public_names_are_these() -> None:
    errors = {
        "Bug", "CommittableLost", "ConfigError", "CorruptCheckpoint", "EnvironmentFailed", "Fatal", "Fenced",
        "InputLost", "JobLocked", "KafkaEosError", "LossCause", "PlanError", "PoisonRecord", "RestartFromCheckpoint",
        "Retryable", "TooManyDeadLetters", "UserError",
    }  # fmt: skip
    verbs = {
        "ValueState",
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
        "Broadcast", "BroadcastConnectedStream", "BroadcastContext", "BroadcastProcessFunction", "BroadcastState",
        "BroadcastStream", "KeyedBroadcastConnectedStream", "KeyedBroadcastContext", "KeyedBroadcastProcessFunction",
    }  # fmt: skip
    states = {"AggregatingState", "Counter", "ListState", "MapState", "ReducingState", "Ttl"}
    time = {"Timers", "WatermarkStrategy", "bounded", "generated", "monotonic"}
    windows = {"Window", "Windowed", "WindowedStream", "days", "global_", "rows", "session", "sliding", "tumbling"}
    windows |= {"on_clock", "on_count"}
    requests = {"breaker", "retries"}

    others = {"DerivedNameWarning", "__version__", "agg"}

    assert set(kafka_eos.__all__) == errors | verbs | joins | broadcasts | states | time | windows | requests | others


def test_every_public_name_exists_and_is_documented() -> None:
    missing = [name for name in kafka_eos.__all__ if name != "__version__" and not getattr(kafka_eos, name).__doc__]

    assert missing == []


def test_two_threads_may_ask_for_names_at_the_same_time() -> None:
    """Both are of one package, the second one imports it as a whole, and the first one has begun with a part of it."""
    command = [sys.executable, "-c", TWO_THREADS, "ProcessFunction", "BroadcastContext"]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
