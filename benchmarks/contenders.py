"""Who is measured: how each is started, and with which settings."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.streams import STREAMS, kafka_streams

APPS = Path(__file__).parent / "apps"
QUIX = "quixstreams==3.28.1"
_QUIX_HOME = Path.home() / ".cache" / "kafka-eos" / QUIX.replace("==", "-")


@dataclass(frozen=True)
class Contender:
    """One way to run one workload. ``command`` ends by itself, or is ended when its output is complete."""

    workload: str
    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.workload} {self.name}"


def contenders(peers: bool) -> list[Contender]:
    """All of them, in the order of the table."""
    ours = (sys.executable, "-m", "kafka_eos", "run", str(APPS / "ours.py"), "--until-caught-up")
    raw = (sys.executable, str(APPS / "raw.py"))
    plain, beside = {"BENCH_PROVENANCE": "none"}, {"BENCH_PROVENANCE": "ledger"}
    pydantic = {"BENCH_MODEL": "pydantic"}
    found = [
        Contender("W1", "raw loop (confluent-kafka, orjson)", raw),
        Contender("W1", "kafka_eos", ours),
        Contender("W1", "kafka_eos, no provenance", ours, plain),
        Contender("W1", "kafka_eos, provenance in the ledger", ours, beside),
        Contender("W1", "kafka_eos, pydantic", ours, pydantic),
        Contender("W1", "kafka_eos, pydantic in, Struct out", ours, {"BENCH_MODEL": "mixed"}),
        Contender("W2", "raw loop (sums in a dict, lost in a crash)", raw),
        Contender("W2", "kafka_eos", ours),
        Contender("W2", "kafka_eos, no provenance", ours, plain),
        Contender("W2", "kafka_eos, provenance in the ledger", ours, beside),
        Contender("W2", "kafka_eos, pydantic", ours, pydantic),
        Contender("W4", "kafka_eos", ours),
        Contender("W4", "kafka_eos, provenance in the ledger", ours, beside),
    ]
    if peers:
        quix, streams = (str(_quix_python()), str(APPS / "quix.py")), kafka_streams(APPS / "Streams.java")
        found += [Contender(workload, "Quix Streams 3.28.1", quix) for workload in ("W1", "W2", "W4")]
        found += [Contender(workload, f"Kafka Streams {STREAMS}", streams) for workload in ("W1", "W2", "W4")]
    return sorted(found, key=lambda contender: contender.workload)


def versions(other: Path) -> list[Contender]:
    """Each workload by this checkout and by another one, which must run in the same environment."""
    found = []
    for ours in contenders(peers=False):
        if ours.name == "kafka_eos":
            command = [part.replace(str(APPS), str(other / "benchmarks" / "apps")) for part in ours.command]
            of_other = {**ours.environment, "PYTHONPATH": str(other)}
            found += [replace(ours, name=f"kafka_eos of {other.name}", command=command, environment=of_other), ours]
    return found


def native_pairs() -> list[Contender]:
    """Each workload without kafka-eos-native and with it, after the raw loop."""
    left_out = {"PYTHONPATH": f"{APPS / 'without_native'}{os.pathsep}{APPS.parents[1]}"}
    found = []
    for each in contenders(peers=False):
        if each.name.startswith("kafka_eos"):
            without = {**each.environment, **left_out}
            found += [
                replace(each, name=f"{each.name} without native", environment=without),
                replace(each, name=f"{each.name} with native"),
            ]
        else:
            found.append(each)
    return found


def environment_of(
    bootstrap: str, source: str, output: str, directory: Path, workload: str, given: Mapping[str, str]
) -> dict[str, str]:
    """The variables of an app: topics, its own directory, one worker. ``given`` has those of the contender."""
    return {
        **os.environ,
        "PYTHONPATH": str(APPS.parents[1]),
        "KAFKA_EOS_BOOTSTRAP_SERVERS": bootstrap,
        "KAFKA_EOS_PARALLELISM": "1",  # all contenders work in one process, unless they say otherwise
        "KAFKA_EOS_TAKE_OVER": "true",  # from the job that was measured before, whose directory is gone
        "BENCH_BOOTSTRAP": bootstrap,
        "BENCH_INPUT": source,
        "BENCH_OUTPUT": output,
        "BENCH_DIRECTORY": str(directory),
        "BENCH_WORKLOAD": workload,
        **given,
    }


def _quix_python() -> Path:
    """The interpreter of an environment that has Quix Streams; it is made at the first call."""
    python = _QUIX_HOME / "bin" / "python"
    stamp = _QUIX_HOME / "installed"
    if not stamp.exists():
        venv.create(_QUIX_HOME, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", QUIX], check=True)
        stamp.touch()
    return python
