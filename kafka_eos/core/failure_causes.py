"""Names of the errors that end an attempt, for the history, the logs and the exit code.

Rule: import little. Each worker imports this module with its session, and worker startup is part of each recovery.
"""

from __future__ import annotations

from kafka_eos.core.errors import PoisonRecord, UserError


class RemoteUserError(UserError):
    """A UserError that was raised in another process. ``error`` is the class of the original.

    ``operator`` and ``where`` name the record, if one caused it; see ``PoisonRecord``.
    """

    def __init__(self, error: str, reason: str, operator: str = "", where: str = "") -> None:
        super().__init__(reason)
        self.error = error
        self.operator = operator
        self.where = where


def failing_record(error: BaseException) -> dict[str, str]:
    """Return the failing record and its operator, if there is one."""
    if isinstance(error, PoisonRecord | RemoteUserError) and error.where:
        return {"operator": error.operator, "where": error.where}
    return {}


def error_name(error: BaseException) -> str:
    """Return the class name of the error that ended the job, wherever it was raised."""
    return error.error if isinstance(error, RemoteUserError) else type(error).__name__
