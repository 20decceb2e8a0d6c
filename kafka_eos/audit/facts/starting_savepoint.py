"""The content of a job before its first record, if it began with a savepoint.

Such a job can be judged in two ways. With its earlier directories, the whole history is one
(``ledger.joined``). Without them the recompute begins with the savepoint's state, and outputs of older terms are not
judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_eos.abc.state import StateHandle
from kafka_eos.audit.facts.epoch_intervals import Offsets, offsets
from kafka_eos.audit.facts.job_ledger import Ledger, joined, read_directory
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.storage import savepoint_files as savepoints


@dataclass(frozen=True)
class StartingSavepoint:
    """A savepoint as the ground of a recompute: where it is, its job, the newest term that it knows, its positions."""

    path: Path
    job: str
    term: Term
    start: Offsets


def beginning(ledger: Ledger) -> StartingSavepoint | None:
    """Return the savepoint that the history begins with; None if there is none. Raise ConfigError if it is missing."""
    origin = ledger.origin
    if origin is None:
        return None
    path, other_way = Path(origin.path), "; or name the job's earlier directory with --earlier"
    try:
        found = savepoints.read_savepoint(path)
    except ConfigError:
        raise ConfigError(
            f"the job began with savepoint {origin.savepoint}, which is not in {path} any more: restore it{other_way}"
        ) from None
    if found.id != origin.savepoint:
        raise ConfigError(
            f"{path} is not savepoint {origin.savepoint}, with which the job began: restore that one{other_way}"
        )
    if damage := savepoints.find_damage(path):
        raise ConfigError(f"{'; '.join(damage)}{other_way}")
    if found.in_flight:
        raise ConfigError(
            f"savepoint {path} contains in-flight rows (from an unaligned checkpoint), whose outputs cannot be told "
            f"from the others{other_way}"
        )
    return StartingSavepoint(path, found.job, Term(found.term), offsets(found.sources))


def job_names(ledger: Ledger, beginning: StartingSavepoint | None) -> frozenset[str]:
    """Return the names under which a job has written, also before the savepoint."""
    return ledger.jobs if beginning is None else ledger.jobs | {beginning.job}


def whole_history(job: str, ledger: Ledger, earlier: Sequence[Path | str]) -> Ledger:
    """Return the ledger of a job together with those of its ``earlier`` directories.

    Raise ConfigError if one of these is not the directory of a job.
    """
    if earlier and ledger.origin is None:
        raise ConfigError(f"job {job!r} did not begin with a savepoint: omit --earlier")
    return joined(ledger, [read_directory(directory) for directory in earlier])


def restored(path: str, operators: frozenset[str]) -> dict[str, tuple[StateHandle, ...]]:
    """Return the state in a savepoint, by those of ``operators`` for which it contains any."""
    handles = savepoints.read_savepoint(Path(path)).operators
    return {
        name: tuple(handle for handle in handles if handle.operator == name)
        for name in {handle.operator for handle in handles} & operators
    }
