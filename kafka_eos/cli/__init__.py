"""The ``kafka-eos`` command: one file a command, all of them thin.

Rule: a user's mistake ends in one paragraph that says what to do next and exit code 2, never in a traceback.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from kafka_eos import __version__
from kafka_eos.cli import audit, broker, checkpoints, demo, doctor, explain, jars, run, savepoint, state
from kafka_eos.cli.ending import explained
from kafka_eos.cli.output import console


class _TwoWords(TyperGroup):
    """Knows commands of two words, the first of which is a command too."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        both = " ".join(args[:2])
        return super().resolve_command(ctx, [both, *args[2:]] if both in self.commands else args)


app = typer.Typer(
    name="kafka-eos",
    cls=_TwoWords,
    help="Exactly-once Kafka pipelines in Python: run them, kill them, and prove that nothing was lost or doubled.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("stop")(savepoint.stop)
app.command("explain")(explain.explain)
app.command("audit")(audit.audit)
app.command("audit topics")(audit.topics)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("jars")(jars.jars)
app.add_typer(checkpoints.app, name="checkpoints")
checkpoints.app.command("trigger")(savepoint.checkpoint)
app.add_typer(savepoint.app, name="savepoint")
app.add_typer(state.app, name="state")
app.add_typer(broker.app, name="broker")


def _version(show: bool) -> None:
    if show:
        console.print(f"kafka-eos {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Options of every command come before it."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 fatal, 2 for the user to change, 3 stopped before the last commit."""
    with explained():
        app()
