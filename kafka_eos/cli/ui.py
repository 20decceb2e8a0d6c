"""``kafka-eos ui``: the dashboard of all jobs of this machine."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Annotated

import typer

from kafka_eos.cli.options import CheckpointDir, resolve_jobs_dir
from kafka_eos.monitoring.terminal.live_view import print_message


def ui(
    port: Annotated[int, typer.Option(help="Port of the dashboard; 0 picks a free port.", min=0, max=65535)] = 8377,
    address: Annotated[
        str, typer.Option(help="Address to serve at. With any other than loopback, everyone who can reach it can read.")
    ] = "127.0.0.1",
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Serve the dashboard of all jobs of this machine.

    Open the printed address in a browser. The token in it permits to take savepoints and to stop jobs; without it the
    dashboard is read-only. The dashboard reads only the jobs' directories and contacts no broker.

    Example: `kafka-eos ui --port 8080`
    """
    from kafka_eos.monitoring.dashboard.job_actions import Actions
    from kafka_eos.monitoring.dashboard.routes import Pages
    from kafka_eos.monitoring.dashboard.server import serve_dashboard
    from kafka_eos.monitoring.http.hosts import LOOPBACK

    home = resolve_jobs_dir(checkpoint_dir)
    pages, actions, what = Pages(home), Actions(home), f"the dashboard at {address}:{port}"
    if address not in LOOPBACK:
        text = f"everyone who reaches {address} can read the dashboard; the token crosses the network in the clear"
        print_message((text, "yellow"))
    with serve_dashboard((address, port), pages, what, actions.routes()) as url:
        print_message(f"the jobs of {home}: {url}/#token={actions.token} (Ctrl-C stops the dashboard, not the jobs)")
        with suppress(KeyboardInterrupt):
            signal.pause()
