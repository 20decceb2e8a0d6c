"""The interface of an engine, which runs pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafka_eos.config.settings import Settings
    from kafka_eos.coordination.status_file import Observer
    from kafka_eos.core.ids import AppRef
    from kafka_eos.plan import Plan


class Engine(Protocol):
    """An engine that runs pipelines; see ``kafka_eos.spark.SparkEngine``."""

    def run(
        self,
        plan: Plan,
        app: AppRef,
        settings: Settings,
        /,
        *,
        observers: tuple[Observer, ...] = (),
        until_caught_up: bool = False,
    ) -> None:
        """Run until stopped, or until the input that exists at the start is processed.

        Tasks load the pipeline from ``app``. ``observers`` receive every event of the job.
        """
