"""What ended an attempt, as the history, the logs and the exit code name it.

Rule: light. Each worker imports it with its session, and a start of a worker is a part of each recovery.
"""

from __future__ import annotations

from kafka_eos.core.errors import PoisonRecord, UserError


class RefusedElsewhere(UserError):
    """What a task in another process says the user must change. ``error`` is the class of the original.

    ``operator`` and ``where`` say at which record, if it was at one; see ``PoisonRecord``.
    """

    def __init__(self, error: str, reason: str, operator: str = "", where: str = "") -> None:
        super().__init__(reason)
        self.error, self.operator, self.where = error, operator, where


def record_of(error: BaseException) -> dict[str, str]:
    """Which record was at fault, and in which operator; empty if none was."""
    if isinstance(error, PoisonRecord | RefusedElsewhere) and error.where:
        return {"operator": error.operator, "where": error.where}
    return {}


def kind_of(error: BaseException) -> str:
    """The class of what ended the job, wherever it was raised."""
    return error.error if isinstance(error, RefusedElsewhere) else type(error).__name__
