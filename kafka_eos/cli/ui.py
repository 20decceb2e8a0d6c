"""``kafka-eos ui``: the dashboard of all jobs of this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from kafka_eos.cli.options import CheckpointDir, resolve_jobs_dir, resolve_settings
from kafka_eos.config.settings import parse_duration
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.terminal.live_view import print_message


def ui(
    port: Annotated[int, typer.Option(help="Port of the dashboard; 0 picks a free port.", min=0, max=65535)] = 8377,
    address: Annotated[
        str,
        typer.Option(
            help="Address to serve at. With any other than loopback, set `http_users` and `http_certificate`."
        ),
    ] = "127.0.0.1",
    token_lifetime: Annotated[
        str, typer.Option(help="Time for which the token permits actions. Restart the command for another one.")
    ] = "12h",  # noqa: S107 - a duration
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Serve the dashboard of all jobs of this machine.

    Open the printed address in a browser. The token in it permits to take savepoints and to stop jobs; without it the
    dashboard is read-only. If standard error is not a terminal, the token is written to a file of this user instead.
    The dashboard reads only the jobs' directories and contacts no broker.

    Example: `kafka-eos ui --port 8080`
    """
    from kafka_eos.monitoring.dashboard.job_actions import Actions
    from kafka_eos.monitoring.dashboard.routes import Pages
    from kafka_eos.monitoring.dashboard.server import serve_dashboard
    from kafka_eos.monitoring.http.access import HttpAccess

    home, access = resolve_jobs_dir(checkpoint_dir), HttpAccess.of(resolve_settings(checkpoint_dir))
    # A service manager ends it as Ctrl-C does, so that the file of the token is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    actions, what = Actions(home, _parse_lifetime(token_lifetime)), f"the dashboard at {address}:{port}"
    for danger in access.find_dangers(address):
        print_message((danger, "yellow"))
    with (
        serve_dashboard((address, port), Pages(home), what, actions.routes(), access) as url,
        _shown_token(actions.token, home / f"ui-{url.rpartition(':')[2]}.token") as token,
        suppress(KeyboardInterrupt),
    ):
        print_message(f"the jobs of {home}: {url}/{token} (Ctrl-C stops the dashboard, not the jobs)")
        signal.pause()


@contextmanager
def _shown_token(token: str, file: Path) -> Iterator[str]:
    """Yield the end of the address with the token.

    A journal keeps what a service prints, for other readers than the terminal has. So there the token is in a file.
    """
    if sys.stderr.isatty():
        yield f"#token={token}"
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # of a process that was killed
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(f"{token}\n")
    try:
        yield f"#token=… with the token in {file}"
    finally:
        file.unlink(missing_ok=True)


def _parse_lifetime(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--token-lifetime: {error}") from None
