"""The options of a crash test, as the commands ``crash-test`` and ``demo`` make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.broker.topics import RecordToSend
from kafka_eos.devtools.crash_test.code_checks import SourceRecords
from kafka_eos.devtools.crash_test.faults import FAULT_PROFILES, FaultPlan
from kafka_eos.devtools.crash_test.private_servers import WantedServers
from kafka_eos.plan import Plan


@dataclass(frozen=True, slots=True)
class TestLoad:
    """The records that are written while faults happen, with their topics. ``sample``: those of the code checks."""

    __test__ = False

    records: Iterable[tuple[str, RecordToSend]]
    count: int
    description: str
    sample: SourceRecords | None = None


@dataclass(frozen=True, slots=True)
class CrashTestOptions:
    """A pipeline, its load and its faults.

    ``make_load`` and ``make_faults`` are called once the pipeline is loaded. ``seconds``: how long writing most of the
    records takes. ``bootstrap``: a broker that runs; None starts one. ``command``: what repeats the test.
    """

    app: AppRef
    make_load: Callable[[Plan, Settings], TestLoad]
    make_faults: Callable[[Plan], FaultPlan]
    command: str
    directory: Path
    seconds: float
    port: int = 0
    keep_broker: bool = False
    engine: str = "embedded"
    bootstrap: str | None = None
    interval: str = "500ms"
    partitions: int = 4
    servers: WantedServers = field(default_factory=WantedServers)
    audits_state: bool = True
    ends_at_findings: bool = False
    """A function that is not deterministic ends the test before the first crash."""

    def __post_init__(self) -> None:
        if self.engine not in FAULT_PROFILES:
            raise ConfigError(f"--engine {self.engine!r} must be one of {', '.join(FAULT_PROFILES)}")
