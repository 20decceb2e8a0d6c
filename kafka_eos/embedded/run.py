"""The front door of the embedded engine."""

from __future__ import annotations

from kafka_eos.config.settings import Settings
from kafka_eos.coordination.status_file import Observer
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.supervisor import Supervisor
from kafka_eos.plan import Plan


def run(
    plan: Plan,
    app: AppRef,
    settings: Settings,
    *,
    observers: tuple[Observer, ...] = (),
    until_caught_up: bool = False,
) -> None:
    """Run ``plan``, which the workers load from ``app``, until it is stopped (SIGTERM, SIGINT).

    With ``until_caught_up`` it ends by itself when the input that was there at the start is processed. Raises
    UserError for what the user must change, Fatal for what only a person can decide, JobLocked if it runs already.
    """
    Supervisor(plan, app, settings, observers, until_caught_up).run()
