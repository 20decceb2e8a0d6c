"""Notes that ``explain --engine spark`` adds: how the plan and its settings behave if an epoch is one Spark job.

Pure, and needs no pyspark. Rule: what is refused here is refused with the same text when the job runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.config.settings import Settings
from kafka_eos.plan import Plan
from kafka_eos.spark.stages import split_into_stages

_WITHOUT_EFFECT = {
    "checkpoint_mode": "there are no barriers: an epoch ends without in-flight rows, exactly-once",
    "aligned_timeout": "there are no barriers",
    "buffer_timeout": "rows go through Spark's shuffle",
    "exchange_memory": "rows go through Spark's shuffle",
    "checkpoint_min_pause": "checkpoint_interval is the time from the start of an epoch to the start of the next",
    "worker_timeout": "Spark monitors its executors (spark.network.timeout)",
    "max_restarts": "Spark retries tasks (spark.task.maxFailures)",
}
"""Settings of the embedded engine, with the reason why they change nothing here."""


def explain_differences(plan: Plan, settings: Settings) -> Sequence[str]:
    """List what is different for this plan on Spark. PlanError for a plan that the engine refuses."""
    stages = len(split_into_stages(plan))
    shape = "1 stage" if stages == 1 else f"{stages} stages, with a shuffle between each two"
    given = settings.origin_of("parallelism") != "default"
    tasks = settings.parallelism if given else "one per core of the cluster"
    return [
        f"on Spark an epoch is one job: {shape}",
        f"on Spark parallelism is the number of tasks of a stage: {tasks}",
        f"on Spark an epoch reads at most {_most(settings)}, each task its share of that",
        *(
            f"on Spark {name}={getattr(settings, name)} has no effect ({reason})"
            for name, reason in _WITHOUT_EFFECT.items()
            if settings.origin_of(name) != "default"
        ),
    ]


def _most(settings: Settings) -> str:
    records, size = f"{settings.max_records_per_epoch} records", settings.max_bytes_per_epoch
    return records if size is None else f"{records}, and about {size} bytes of keys and values"
