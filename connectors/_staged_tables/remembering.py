"""What a database lacks of what a life of a job has committed there. Pure; see ``interfaces.Remembers``."""

from __future__ import annotations

from collections.abc import Collection

from kafka_eos.abc.committer import Standing
from kafka_eos.connectors._staged_tables.incarnation_markers import Mark
from kafka_eos.core.ids import Epoch, EpochId


def lacking(
    scope: str, mark: Mark | None, newest: EpochId, standings: Collection[Standing], last: Epoch | None
) -> str | None:
    """For people; None if nothing is missing.

    ``mark``       that of the life; None if the database has none
    ``newest``     the newest epoch that the life has finished
    ``standings``  of the newest rows that the life has committed there up to then, as they are now
    ``last``       the newest epoch that the database tells of; None if it tells of none
    """
    if mark is None:
        return f"{scope} has nothing of this job" if standings else None
    if mark.over:  # the job is told so when it looks for its mark
        return None
    if mark.term < newest.term:
        return f"{scope} has term {mark.term} of this job at most"
    if last is not None and last > newest.epoch:
        return f"{scope} has epoch {last} of this job already"
    if {*standings} <= {Standing.COMMITTED}:
        return None
    return f"{scope} has not all that is committed up to epoch {newest}"
