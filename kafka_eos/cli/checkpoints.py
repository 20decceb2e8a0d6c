"""``kafka-eos checkpoints``: list, show and verify what a job has stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos.cli import savepoints as savepoint
from kafka_eos.cli.audit import Earlier, Master, ReportDir, conclude_on_error, exit_with_verdict
from kafka_eos.cli.options import (
    Bootstrap,
    CheckpointDir,
    Job,
    locate_job,
    open_app,
    open_job_storage,
    resolve_with_keys,
)
from kafka_eos.cli.output import echo
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.terms import find_missing, gather_from_outside
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.monitoring.terminal.live_view import format_bytes
from kafka_eos.monitoring.terminal.live_view import print_output as show_table
from kafka_eos.protocol.recovery import RecordListing, decided_epochs
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage

app = typer.Typer(help="List, show and verify the checkpoints of a job.", no_args_is_help=True)
out = echo


@app.command("list")
def list_(job: Job, checkpoint_dir: CheckpointDir = None) -> None:
    """List the decided epochs that are still stored, oldest first.

    Example: `kafka-eos checkpoints list order-totals`
    """
    job, checkpoint_dir = locate_job(job, checkpoint_dir)
    storage, facts = _open(job, checkpoint_dir)
    table = Table("epoch", "term", "decided", "committed", "state", "output", "valid")
    valid = decided_epochs(facts)
    for epoch in sorted(facts.manifests):
        committed = "yes" if epoch in facts.receipts else "not yet"
        counts = "yes" if epoch in valid or epoch in facts.receipts else "no: superseded by a newer term"
        try:
            when, state, output = _cells(_load(storage, job, epoch))
        except FileNotFoundError:
            continue  # the running job has just deleted it
        except (CorruptCheckpoint, ConfigError) as error:
            when, state, output, counts = "?", "?", "?", f"damaged: {error}"
        table.add_row(str(epoch.epoch), str(epoch.term), when, committed, state, output, Text(counts))
    show_table(table)


def _cells(manifest: Manifest) -> tuple[str, str, str]:
    """Return the cells for the time of the decision, the size of the state, and the output."""
    size = sum(file.size for handle in manifest.states for file in handle.files)
    records = sum(committable.records for committable in manifest.committables)
    return _when(manifest.created_at), format_bytes(size), f"{records:,} records"


@app.command()
def show(
    job: Job,
    epoch: Annotated[int | None, typer.Argument(help="Number of the epoch. Default: the newest.")] = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Show the contents of one epoch: positions, state files, committables.

    Example: `kafka-eos checkpoints show order-totals 42`
    """
    job, checkpoint_dir = locate_job(job, checkpoint_dir)
    storage, facts = _open(job, checkpoint_dir)
    found = [m for m in sorted(facts.manifests) if epoch is None or m.epoch.n == epoch]
    if not found:
        which = "" if epoch is None else f" {epoch}"
        raise ConfigError(f"job {job!r} has no stored epoch{which}; see: kafka-eos checkpoints list {job}")
    try:
        manifest = _load(storage, job, found[-1])
    except FileNotFoundError as error:
        raise ConfigError(f"job {job!r} has just deleted epoch {found[-1].epoch}") from error
    out(
        f"epoch {manifest.epoch}, term {manifest.term}, decided {_when(manifest.created_at)}, plan {manifest.plan[:12]}"
    )
    for source, positions in manifest.sources.items():
        out(f"\nsource {source}")
        for split, position in sorted(positions.items()):
            out(f"  {split}: {position}")
    for handle in manifest.states:
        size = sum(file.size for file in handle.files)
        out(f"\nstate of {handle.operator} ({handle.backend}): {len(handle.files)} files, {size:,} bytes")
        for state in handle.states:
            out(f"  {state}")
    for committable in manifest.committables:
        out(f"\noutput to {committable.scope}: {committable.records:,} records\n  {dict(committable.payload)}")


@app.command("verify")
def verify_(
    job: Job,
    against_input: Annotated[
        str | None,
        typer.Option(
            metavar="APP",
            help="Also recompute the state from the input with the pipeline in this file, and compare it key by key.",
        ),
    ] = None,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    earlier: Earlier = None,
    report_dir: ReportDir = Path(".kafka-eos/state"),
    master: Master = None,
) -> None:
    """Check every stored object against its checksum, and every checkpoint against the ledger. Exit code 1 if one is
    damaged, or differs from the committed one.

    This proves that the stored objects are unchanged. `--against-input` also proves that they are correct: Spark runs
    the pipeline's own functions over the input up to the newest committed checkpoint, and compares every key of every
    state. The job must have stopped. Exit code 0 for PASS, 1 for FAIL (the findings name the keys), 2 for INCONCLUSIVE
    (something needed for a verdict is missing, for example expired input; or there are in-flight rows). The verdict
    lists what was not compared: state with a time to live, and keys whose input order is unknown. Needs Java 17 and
    the extra `audit`. To check the output, use `kafka-eos audit`.

    Example: `kafka-eos checkpoints verify order-totals`

    Example: `kafka-eos checkpoints verify order-totals --against-input orders.py`
    """
    job, checkpoint_dir = locate_job(job, checkpoint_dir)
    options = {"bootstrap_servers": bootstrap_servers, "checkpoint_dir": checkpoint_dir}
    if against_input is None:
        raise typer.Exit(1 if _problems(job, _settings(options)) else 0)
    pipeline, settings = open_app(against_input, **options)
    if pipeline.name != job:
        raise ConfigError(f"{against_input} defines the pipeline {pipeline.name!r}, but the job to verify is {job!r}")
    damaged = _problems(job, settings)
    with conclude_on_error(against_input, report_dir) as progress:
        from kafka_eos.audit.state import audit_state

        verdict = audit_state(
            pipeline, settings, report_dir=report_dir, progress=progress, master=master, earlier=earlier or ()
        )
    exit_with_verdict(verdict, report_dir, at_least=1 if damaged else 0)


def _problems(job: str, settings: Settings) -> int:
    """Print the problems of the stored objects of a job; return their number."""
    storage = open_job_storage(settings, job)
    facts = gather_from_outside(storage, job)
    problems = [verify.Problem(name, f"{name}: missing") for name in find_missing(facts)] + verify.verify_job(
        storage, job
    )
    for problem in problems:
        out(problem.what)
    out(f"{len(facts.manifests)} epochs, {len(storage.list(paths.SHARED))} state files: {len(problems)} problems")
    return len(problems)


def _settings(options: Mapping[str, str | None]) -> Settings:
    return resolve_with_keys(cli={name: value for name, value in options.items() if value is not None})


def _open(job: str, checkpoint_dir: CheckpointDir) -> tuple[JobStorage, RecordListing]:
    storage = open_job_storage(_settings({"checkpoint_dir": checkpoint_dir}), job)
    return storage, gather_from_outside(storage, job)


def _load(storage: JobStorage, job: str, epoch: EpochId) -> Manifest:
    """Load a manifest. Raise FileNotFoundError if the job, which may run, has just deleted it."""
    return records.load(storage, Manifest, paths.manifest_name(epoch), job)


def _when(at: int) -> str:
    return datetime.fromtimestamp(at / 1000).isoformat(sep=" ", timespec="seconds")


app.command("trigger")(savepoint.trigger_checkpoint)
