"""What probes of committables say to people. Pure."""

from __future__ import annotations

from kafka_eos.abc.committer import Standing
from kafka_eos.connectors._staged_tables.stage_names import Promise


def detail(promise: Promise, standing: Standing, name: str, scope: str, lost: str, remedy: str) -> str:
    """``lost``: how that may have come about; ``remedy``: how to say what became of the rows, if nothing tells it."""
    match standing:
        case Standing.PREPARED:
            return f"{name} is there"
        case Standing.COMMITTED:
            return f"{name} was committed into {promise.target}"
        case Standing.LOST:
            return f"{name} was {lost}"
    return (
        f"nothing in {scope} tells what became of {name}, whose rows were for {promise.target}: most likely the "
        f"database was put back to an older copy, or is another one. If it holds the rows of epoch {promise.epoch}, "
        f"say so{remedy}"
    )
