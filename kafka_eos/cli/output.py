"""Results of commands on stdout, line by line. Tables are printed by ``monitoring.terminal.live_view``.

Rule: no command calls ``typer.echo`` itself, so that no name and no record reaches a terminal unescaped.
"""

from __future__ import annotations

import typer

from kafka_eos._util.printable_text import printable, printable_json


def echo(text: str, *, err: bool = False) -> None:
    """Print lines, to standard error with ``err``. Unprintable characters are escaped."""
    typer.echo(printable(text, "\n\t"), err=err)


def echo_json(value: bytes | str) -> None:
    """Print a JSON value. Unprintable characters are escaped as JSON escapes them."""
    typer.echo(printable_json(value if isinstance(value, str) else value.decode()))
