"""The front door of the embedded engine."""

from __future__ import annotations

from kafka_eos.app import AppRef
from kafka_eos.dsl import Pipeline
from kafka_eos.embedded.status import Observer
from kafka_eos.embedded.supervisor import Supervisor
from kafka_eos.settings import Settings


def run(
    pipeline: Pipeline,
    settings: Settings,
    *,
    observers: tuple[Observer, ...] = (),
    until_caught_up: bool = False,
) -> None:
    """Run ``pipeline`` until it is stopped (SIGTERM, SIGINT) or, with ``until_caught_up``, has drained its input.

    Raises UserError for what the user must change, Fatal for what only a person can decide, JobLocked if the
    job is already running.
    """
    plan = pipeline.plan()
    Supervisor(plan, AppRef(pipeline.file, pipeline.name), settings, observers, until_caught_up).run()
