"""``kafka-eos audit``: prove from the topics that nothing was lost or doubled, or say what was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app, open_job
from kafka_eos.cli.output import console, say


def audit(
    app: App,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    report_dir: Annotated[Path, typer.Option(help="Where the report is written.")] = Path(".kafka-eos/audit"),
) -> None:
    """Read the input and output topics with Spark, recompute every output, and compare.

    Uses the Java client, not the one that the pipeline writes with. The job must have stopped cleanly. Exit code 0
    for PASS, 1 for FAIL (the findings name the records), 2 for INVALID (something needed for a verdict is missing).
    Needs Java 17 and PySpark.

    Example: `kafka-eos audit orders.py --report-dir audit`
    """
    from kafka_eos.audit import audit as run_audit

    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    open_job(settings, pipeline.name)
    with console.status("starting Spark") as status:

        def progress(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                say(text)

        verdict = run_audit(pipeline, settings, report_dir=report_dir, progress=progress)
    typer.echo(verdict.headline)
    for finding in verdict.findings:
        typer.echo(f"\n{finding.check.question} {finding.count:,} found, the first:")
        for offender in finding.first:
            typer.echo(f"  {offender}")
    if verdict.performed:
        for check, reason in verdict.not_possible.items():
            typer.echo(f"not checked, {check.value}: {reason}")
    for note in verdict.facts.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"report: {report_dir}")
    raise typer.Exit(verdict.exit_code)
