"""The ``kafka-eos`` command: one thin module per command.

Rule: a user's mistake ends in one paragraph that says what to do next and exit code 2, never in a traceback. The module
of a command is imported only when the command is called; the table here is enough to list the commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from kafka_eos import __version__
from kafka_eos._util.gc_tuning import freeze_imports, without_gc
from kafka_eos.cli.output import echo
from kafka_eos.monitoring.terminal.exit_codes import exit_on_error

_COMMANDS = {
    "init": (
        "init:init",
        "Create a project: a pipeline, its models, unit and integration tests, and files for Docker and CI.",
    ),
    "run": ("run:run", "Run a pipeline with exactly-once guarantees, until it is stopped."),
    "stop": (
        "savepoints:stop",
        "Stop a running job: it takes a last checkpoint, commits it, and ends without open output.",
    ),
    "status": (
        "status:status",
        "Show a job's state, last commit and lag.",
    ),
    "list": ("status:list_", "List the jobs of this machine with the state of each."),
    "ui": ("ui:ui", "Serve the dashboard of all jobs of this machine."),
    "top": (
        "top:top",
        "Watch a running job in the terminal: rates, back-pressure, lag, epoch phases.",
    ),
    "stacks": (
        "stacks:stacks",
        "Dump the Python stacks of all threads of a running job.",
    ),
    "profile": ("profile:profile", "Record a flame graph of the processes of a running job."),
    "explain": (
        "explain:explain",
        "Print a pipeline's graph, the guarantee of every path with its reason, and the settings that you changed.",
    ),
    "preview": (
        "preview:preview",
        "Read real records, and show what every operator makes of each, with event time and late rows.",
    ),
    "audit": (
        "audit:audit",
        "Prove that a job's output is exactly-once: recompute every output from the inputs with Spark, and compare.",
    ),
    "audit topics": (
        "audit:topics",
        "Audit topics written by any program: duplicates, losses, order, aborted records, a recomputation in SQL.",
    ),
    "replay": (
        "replay:replay",
        "Replay one epoch of a job in this process, without its sinks, and write it as a test.",
    ),
    "doctor": (
        "doctor:doctor",
        "List open transactions and staged output of a job, resolve them on request, and check its environment.",
    ),
    "reset": (
        "reset:reset",
        "Give up a job's state and positions, so that its next start reads the input by its start rule.",
    ),
    "crash-test": (
        "crash_test:crash_test",
        "Kill a pipeline at every step of a checkpoint, a commit and a recovery, then compare every output.",
    ),
    "demo": (
        "demo:demo",
        "Start a real Kafka broker, run a job, kill it repeatedly under load, then audit its output.",
    ),
    "jars": (
        "jars:jars",
        "Print the paths of the jars that Spark needs for Kafka, separated by commas; download them if missing.",
    ),
    "checkpoints": ("checkpoints:app", "List, show and verify the checkpoints of a job."),
    "savepoint": (
        "savepoints:app",
        "Take, list and drop savepoints: copies of a job's progress to start from.",
    ),
    "schemas": (
        "schemas:app",
        "Compare the schemas of a pipeline with the registry and with stored state, before it starts.",
    ),
    "dead-letters": (
        "dead_letters:app",
        "Show dead letters and replay their records exactly once.",
    ),
    "config": (
        "config:app",
        "Check and show the settings of a pipeline, or of this directory, with the origin of each value.",
    ),
    "state": ("state:app", "List and read the state of a savepoint or checkpoint; the job need not run."),
    "broker": (
        "broker:app",
        "Start and stop a local Kafka broker for development (needs Java 17), and use any cluster's topics by hand.",
    ),
}
"""Location of each command in this package, and the first paragraph of its help, by name."""


class LazyCommandGroup(TyperGroup):
    """A command group that imports a command only when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: TyperCommand(name, help=text) for name, (_, text) in _COMMANDS.items()})

    def load(self, name: str) -> Any:
        """Import and return the real command, for which the one in ``commands`` is a placeholder."""
        module, _, attribute = _COMMANDS[name][0].partition(":")
        with without_gc():
            found = getattr(import_module(f"{__name__}.{module}"), attribute)
        freeze_imports()
        home = _typer()
        if isinstance(found, typer.Typer):
            home.add_typer(found, name=name)
        else:
            home.command(name)(found)
        return typer.main.get_group(home).commands[name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        both = " ".join(args[:2])
        name, command, rest = super().resolve_command(ctx, [both, *args[2:]] if both in self.commands else args)
        return name, command and self.load(command.name or ""), rest


def _typer(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=add_completion, rich_markup_mode="markdown", pretty_exceptions_enable=False, **options
    )


app = _typer(
    name="kafka-eos",
    add_completion=True,
    cls=LazyCommandGroup,
    help="Run exactly-once Kafka pipelines, and prove that nothing was lost or duplicated.",
    no_args_is_help=True,
)


def _version(show: bool) -> None:
    if show:
        echo(f"kafka-eos {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Run exactly-once Kafka pipelines, and prove that nothing was lost or duplicated."""


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 fatal error, 2 error that the user must fix, 3 stopped before the last commit, 4 a
    run with ``--until-caught-up`` wrote nothing but dead letters.
    """
    with exit_on_error():
        app()
