"""The content of a job before its first record, if it began with a savepoint.

Such a job can be judged in two ways. With its earlier checkpoint directories, the whole history is one
(``ledger.joined``). Without them the recompute begins with the savepoint's state, and outputs of older terms are not
judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_eos.abc.state import StateHandle
from kafka_eos.audit.facts.epoch_intervals import Offsets, offsets
from kafka_eos.audit.facts.job_ledger import Ledger, joined, read_ledger
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.storage_factory import find_storage


@dataclass(frozen=True)
class StartingSavepoint:
    """A savepoint as the ground of a recompute: where it is, the newest term that it knows, its positions."""

    path: Path
    term: Term
    start: Offsets


def beginning(ledger: Ledger) -> StartingSavepoint | None:
    """Return the savepoint that the history begins with; None if there is none. Raise ConfigError if it is missing."""
    origin = ledger.origin
    if origin is None:
        return None
    path, other_way = Path(origin.path), "; or name the job's earlier checkpoint directory with --earlier"
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
    return StartingSavepoint(path, Term(found.term), offsets(found.sources))


def whole_history(settings: Settings, job: str, ledger: Ledger, earlier: Sequence[Path | str]) -> Ledger:
    """Return the ledger of a job together with those of its ``earlier`` checkpoint directories.

    Raise ConfigError if a directory has no checkpoints of the job.
    """
    if earlier and ledger.origin is None:
        raise ConfigError(f"job {job!r} did not begin with a savepoint: omit --earlier")
    lives = []
    for directory in earlier:
        of_then = Settings.resolve(cli={"checkpoint_dir": directory})
        place = of_then.checkpoint_location(job)
        storage = find_storage(place)
        if storage is None:
            raise ConfigError(f"--earlier {directory} contains no checkpoints of job {job!r}")
        lives.append(read_ledger(storage, job, place))
    return joined(ledger, lives)


def restored(path: str, operators: frozenset[str]) -> dict[str, tuple[StateHandle, ...]]:
    """Return the state in a savepoint, by those of ``operators`` for which it contains any."""
    handles = savepoints.read_savepoint(Path(path)).operators
    return {
        name: tuple(handle for handle in handles if handle.operator == name)
        for name in {handle.operator for handle in handles} & operators
    }
