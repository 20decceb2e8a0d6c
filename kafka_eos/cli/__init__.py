"""The ``kafka-eos`` command: one file a command, all of them thin.

Rule: a user's mistake ends in one paragraph that says what to do next and exit code 2, never in a traceback. The file
of a command is imported when the command is called; to list the commands the table here is enough.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from kafka_eos import __version__
from kafka_eos._util.gc_tuning import freeze_imports, without_gc
from kafka_eos.monitoring.terminal.exit_codes import exit_on_error

_COMMANDS = {
    "run": ("run:run", "Run a pipeline, exactly-once, until it is stopped."),
    "stop": (
        "savepoints:stop",
        "Stop a running job: it takes a last checkpoint, commits it, and ends with nothing open.",
    ),
    "status": (
        "status:status",
        "Show the status of a job: whether it runs, when it committed last, and how far behind it is.",
    ),
    "list": ("status:list_", "The jobs of this machine, running or not, by name, and how each stands."),
    "ui": ("ui:ui", "The dashboard of all jobs of this machine, running or ended, in a browser."),
    "top": (
        "top:top",
        "A running job in the terminal, live: rates, back-pressure, lag, and what its epochs spend time on.",
    ),
    "stacks": (
        "stacks:stacks",
        "Show the Python stacks of all threads of a running job, the innermost call first.",
    ),
    "profile": ("profile:profile", "A flame graph of what the processes of a running job spend their time on."),
    "explain": (
        "explain:explain",
        "Print the graph, the guarantee of every path with its reason, and each setting with its origin.",
    ),
    "audit": (
        "audit:audit",
        "Read the input and output topics and files with Spark, recompute every output, and compare.",
    ),
    "audit topics": (
        "audit:topics",
        "Audit any topics, whoever wrote them: duplicates, losses, order, aborted records, a recompute in SQL.",
    ),
    "doctor": (
        "doctor:doctor",
        "List what of this job's name is open, oldest first, and end it when asked; check what the job needs.",
    ),
    "demo": (
        "demo:demo",
        "Start a real Kafka, run a job, kill it again and again under load, then audit what it wrote.",
    ),
    "jars": (
        "jars:jars",
        "Print the jars that Spark needs to read and write Kafka, fetched if need be, as `--jars` takes them.",
    ),
    "checkpoints": ("checkpoints:app", "List, show and verify the checkpoints of a job."),
    "savepoint": (
        "savepoints:app",
        "Make, list and drop savepoints: copies of a job's progress that it can begin with.",
    ),
    "schemas": (
        "schemas:app",
        "Compare the schemas of a pipeline with the registry and with stored state, before it starts.",
    ),
    "dead-letters": (
        "dead_letters:app",
        "Show the records that were refused, and put them back to be processed once.",
    ),
    "config": (
        "config:app",
        "Check and show the settings of a pipeline, or of this directory, and where each value comes from.",
    ),
    "state": ("state:app", "List and read the state of a savepoint or checkpoint; the job need not run."),
    "broker": ("broker:app", "Start, stop and look at a local Kafka broker (from jars; needs Java 17)."),
}
"""Name: where it is, in this package, and the first sentence of its help."""


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


def _typer(**options: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False, **options)


app = _typer(
    name="kafka-eos",
    cls=LazyCommandGroup,
    help="Exactly-once Kafka pipelines in Python: run them, kill them, and prove that nothing was lost or duplicated.",
    no_args_is_help=True,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"kafka-eos {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Options of every command come before it."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 fatal, 2 for the user to change, 3 stopped before the last commit.

    And 4: a bounded run has read nothing but what became dead letters.
    """
    with exit_on_error():
        app()
