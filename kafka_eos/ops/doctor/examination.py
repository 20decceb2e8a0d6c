"""All checks of one job, each on its own: if one check fails to determine its facts, the others still run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.sink import HasClock
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import ConfigError, KafkaEosError
from kafka_eos.ops.doctor import findings
from kafka_eos.ops.doctor import machine_facts as machine
from kafka_eos.ops.doctor.findings import CheckResult, ClockOffset
from kafka_eos.ops.doctor.store_probe import try_store
from kafka_eos.plan import Plan
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


def run_checks(
    plan: Plan, settings: Settings, coordinator: Coordinator, store: JobStorage | None
) -> Iterator[CheckResult]:
    """Run all checks of a job and yield their results."""
    where, size = str(settings.checkpoint_location(plan.name)), 0
    if store is None:
        yield CheckResult("checkpoint store", "unknown", f"nothing is stored in {where} yet, so it was not tested")
    else:
        try:
            size = _state_bytes(store, plan.name)
            yield findings.check_store(try_store(store, where), settings.checkpoint_interval)
        except (KafkaEosError, OSError) as error:
            yield _failed("checkpoint store", error)
    yield from map(findings.check_disk, machine.disks(settings, plan.name, size))
    yield findings.check_open_files(settings.parallelism, machine.open_files())
    yield findings.check_memory(machine.memory(plan, settings))
    yield from findings.check_clients(plan.describe_clients())
    connectors = list(_check_connectors(coordinator))
    yield from connectors
    if all(each.verdict != "unknown" for each in connectors):  # else the brokers do not respond
        yield from _clocks(plan, coordinator.ownership.load_identity())


def _state_bytes(store: JobStorage, job: str) -> int:
    """Return the size of the state in the newest committed epoch."""
    receipts = [paths.parse_receipt_name(name) for name in store.list(paths.RECEIPTS)]
    if not receipts:
        return 0
    newest = records.load(store, Manifest, paths.manifest_name(max(receipts)), job)
    return sum(file.size for file in records.index_files(newest.states, newest.in_flight).values())


def _check_connectors(coordinator: Coordinator) -> Iterator[CheckResult]:
    try:
        yield from findings.check_connectors(coordinator.check(), None)
    except ConfigError as error:
        yield from findings.check_connectors((), str(error))
    except KafkaEosError as error:
        yield _failed("sources and sinks", error)


def _clocks(plan: Plan, context: JobContext) -> Iterator[CheckResult]:
    """Yield one check for each system that reports its time."""
    asked: set[str] = set()
    for sink in (node.sink for node in plan.sinks):
        scope = sink.scope(context)
        if isinstance(sink, HasClock) and scope not in asked:
            asked.add(scope)
            yield _clock(lambda sink=sink: sink.clock(context), scope)  # type: ignore[misc]


def _clock(look: Callable[[], tuple[float, float] | None], scope: str) -> CheckResult:
    try:
        measured = look()
    except (KafkaEosError, OSError) as error:
        return _failed("clock", error)
    if measured is None:
        return CheckResult("clock", "unknown", f"{scope} does not report its time, or not to this user")
    return findings.check_clock(ClockOffset(scope, *measured))


def _failed(check: str, error: Exception) -> CheckResult:
    return CheckResult(check, "unknown", str(error) or type(error).__name__, "fix this, then run doctor again")
