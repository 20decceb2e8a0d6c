"""All checks of one job, each by itself: what one of them cannot find out keeps no other from being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.sink import HasClock
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import ConfigError, KafkaEosError
from kafka_eos.ops.doctor import findings
from kafka_eos.ops.doctor import machine_facts as machine
from kafka_eos.ops.doctor.findings import ClockSeen, Finding
from kafka_eos.ops.doctor.store_probe import tried
from kafka_eos.plan import Plan
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


def examined(plan: Plan, settings: Settings, coordinator: Coordinator, store: JobStorage | None) -> Iterator[Finding]:
    """``store``: None where nothing can be tried before the first start."""
    where, size = str(settings.checkpoints_of(plan.name)), 0
    if store is None:
        yield Finding("checkpoint store", "unknown", f"nothing is stored in {where} yet, so nothing was tried there")
    else:
        try:
            size = _state_bytes(store, plan.name)
            yield findings.store(tried(store, where), settings.checkpoint_interval)
        except (KafkaEosError, OSError) as error:
            yield _failed("checkpoint store", error)
    yield from map(findings.disk, machine.disks(settings, plan.name, size))
    yield findings.handles(settings.parallelism, machine.open_files())
    yield findings.memory(machine.memory(plan, settings))
    promises = list(_promises(coordinator))
    yield from promises
    if all(each.verdict != "unknown" for each in promises):  # else nobody answers
        yield from _clocks(plan, coordinator.recognise())


def _state_bytes(store: JobStorage, job: str) -> int:
    """Of the newest committed epoch."""
    receipts = [paths.parse_receipt_name(name) for name in store.list(paths.RECEIPTS)]
    if not receipts:
        return 0
    newest = records.load(store, Manifest, paths.manifest_name(max(receipts)), job)
    return sum(file.size for file in records.named_files(newest.states, newest.in_flight).values())


def _promises(coordinator: Coordinator) -> Iterator[Finding]:
    try:
        yield from findings.promises(coordinator.check(), None)
    except ConfigError as error:
        yield from findings.promises((), str(error))
    except KafkaEosError as error:
        yield _failed("sources and sinks", error)


def _clocks(plan: Plan, context: JobContext) -> Iterator[Finding]:
    """One for each system that tells its time."""
    asked: set[str] = set()
    for sink in (node.sink for node in plan.sinks):
        scope = sink.scope(context)
        if isinstance(sink, HasClock) and scope not in asked:
            asked.add(scope)
            yield _clock(lambda sink=sink: sink.clock(context), scope)  # type: ignore[misc]


def _clock(look: Callable[[], tuple[float, float] | None], scope: str) -> Finding:
    try:
        told = look()
    except (KafkaEosError, OSError) as error:
        return _failed("clock", error)
    if told is None:
        return Finding("clock", "unknown", f"{scope} does not tell its time, or not to this user")
    return findings.clock(ClockSeen(scope, *told))


def _failed(check: str, error: Exception) -> Finding:
    return Finding(check, "unknown", str(error) or type(error).__name__, "repair that, and ask again")
