"""The messages of probes of committables. Pure."""

from __future__ import annotations

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors._staged_tables.stage_names import TableCommittable


def describe_status(
    promise: TableCommittable, standing: CommitStatus, name: str, scope: str, lost: str, remedy: str
) -> str:
    """Return a description of a staged table's status, with a remedy if it is unknown."""
    match standing:
        case CommitStatus.PREPARED:
            return f"{name} is there"
        case CommitStatus.COMMITTED:
            return f"{name} was committed into {promise.target}"
        case CommitStatus.LOST:
            return f"{name} was {lost}"
    return (
        f"nothing in {scope} tells what became of {name}, whose rows were for {promise.target}: most likely the "
        f"database was put back to an older copy, or is another one. If it holds the rows of epoch {promise.epoch}, "
        f"say so{remedy}"
    )
