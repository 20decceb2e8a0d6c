"""The demo's input and faults; ``crash_test`` runs it.

Rule: which orders there are depends on the seed alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.broker.topics import RecordToSend
from kafka_eos.devtools.crash_test.crash_test import run_crash_test
from kafka_eos.devtools.crash_test.faults import plan_faults
from kafka_eos.devtools.crash_test.options import CrashTestOptions, TestLoad
from kafka_eos.devtools.crash_test.private_servers import WantedServers
from kafka_eos.devtools.crash_test.result import CrashTestResult

APP: Final = Path(__file__).with_name("three_systems.py")
USERS: Final = 2_000
_NOT_PAID: Final = ("pending", "cancelled", "refused")
_PAID_SHARE: Final = 0.9
_SECONDS: Final = {"embedded": 40.0, "spark": 90.0}
"""The time in which most of the orders are written: about as long as the faults take on a quiet machine."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of a demo. ``seconds``: how long writing most of the orders takes; None for the engine's default."""

    orders: int = 200_000
    seed: int = 1
    directory: Path = Path(".kafka-eos/demo")
    port: int = 0
    keep_broker: bool = False
    engine: str = "embedded"
    step_kills: int = 3
    outside_kills: int = 2
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in _SECONDS:
            raise ConfigError(f"--engine {self.engine!r} must be one of {', '.join(_SECONDS)}")
        if self.orders < 1000:
            raise ConfigError(f"--orders {self.orders} is too few for faults in between; use at least 1000")


def run_demo(options: DemoOptions, console: Console) -> CrashTestResult:
    """Run the demo, write its report and return the result. Raises ConfigError as ``run_crash_test``."""
    load = TestLoad(orders(options.seed, options.orders), options.orders, f"{options.orders:,} orders")
    return run_crash_test(
        CrashTestOptions(
            app=AppRef(APP),
            make_load=lambda plan, settings: load,
            make_faults=lambda plan: plan_faults(
                options.seed, options.step_kills, options.outside_kills, options.engine
            ),
            command=f"kafka-eos demo --engine {options.engine} --orders {options.orders} --seed {options.seed}",
            directory=options.directory,
            seconds=options.seconds or _SECONDS[options.engine],
            port=options.port,
            keep_broker=options.keep_broker,
            engine=options.engine,
            servers=WantedServers(("ORDERS_DATABASE",), ("ORDERS_FILES",), optional=True),
            audits_state=False,
        ),
        console,
    )


def orders(seed: int, count: int, users: int = USERS) -> Iterator[tuple[str, RecordToSend]]:
    """Yield ``count`` orders with their topic: about ninety of a hundred are paid, keyed by user."""
    dice = random.Random(f"orders of {seed}")  # noqa: S311 - repeated by its seed
    for _ in range(count):
        user = f"user-{dice.randrange(users):04d}"
        paid = dice.random() < _PAID_SHARE
        order = {"user": user, "amount": dice.randint(1, 500), "status": "paid" if paid else dice.choice(_NOT_PAID)}
        yield "orders", RecordToSend(user.encode(), json.dumps(order).encode())
