"""Every error of the package, grouped by the action that the caller must take.

    KafkaEosError
    ├── UserError              the user changes something, then starts again
    │   ├── PlanError            the pipeline cannot be built as written
    │   ├── ConfigError          a setting, a broker option or the environment is wrong
    │   │   └── TransientConfigError  a system differs from the settings now, and may match them later
    │   │       └── LoginRefused     a login that worked before is rejected: passwords and certificates are renewed
    │   ├── PoisonRecord         one record cannot be processed
    │   ├── TooManyDeadLetters   more records are rejected than the job may dead-letter
    │   ├── InputLost            records that the job still needs are gone from the source
    │   └── JobLocked            another supervisor runs this job
    ├── Retryable              call the same thing again, later
    │   ├── RegistryUnavailable  a schema registry does not respond
    │   └── PartialProgress      the call is not done, but made progress
    ├── RestartFromCheckpoint  discard this attempt; restart from the last decided epoch
    │   ├── WorkersChanged       not a failure: there are more workers, or one must run elsewhere
    │   └── EnvironmentFailed    a system that the job uses failed, and no record is to blame
    ├── Fenced                 a newer term or a successor owns the job; stop without touching anything
    ├── Fatal                  stop the job for manual intervention
    │   ├── CommittableLost      a committable is lost, or its status is unknown
    │   └── CorruptCheckpoint    a durable object is not what was written
    └── Bug                    a defect of this package; please report it

Rule: a client library's error is mapped to one of these once, at the edge that calls the client.
"""

from __future__ import annotations

import enum
from typing import Literal


class KafkaEosError(Exception):
    """The base class of all errors that this package raises on purpose."""


class UserError(KafkaEosError):
    """The user must change something; restarting alone does not help."""


class PlanError(UserError):
    """The pipeline cannot be built as written. The message quotes the user's line."""


class ConfigError(UserError):
    """A setting, a broker option or the environment is wrong. The message says what to set."""


class TransientConfigError(ConfigError):
    """A system differs from the settings now, and may match them later: an address leads to another cluster.

    At a start it is like any ConfigError. A job that ran before returns to its last decided epoch and retries, as after
    EnvironmentFailed.
    """


class LoginRefused(TransientConfigError):
    """A system rejects the login of this job; the password, token or certificate may be renewed meanwhile."""


class PoisonRecord(UserError):
    """A record could not be decoded, or user code raised on it.

    Attributes: ``where`` is ``topic/partition/offset`` of the input record, ``operator`` the name of the operator that
    rejected it, ``reason`` the error and the lines of the user's code that raised it. ``advice`` names a remedy. If a
    timer or a window raised, ``where`` names the firing, and ``what`` is "firing".
    """

    def __init__(
        self,
        where: str,
        operator: str,
        reason: str,
        advice: str = "Fix the code or the record, or make such records dead letters: "
        'pipeline.source(..., on_error=dead_letter("topic"))',
        *,
        what: Literal["record", "firing"] = "record",
    ) -> None:
        place = f"{where} (topic/partition/offset)" if what == "record" else f"{where},"
        super().__init__(
            f"the {what} at {place} failed in operator {operator!r}: {reason.rstrip('.')}. "
            f"Nothing was skipped. {advice}."
        )
        self.where = where
        self.operator = operator
        self.reason = reason


class TooManyDeadLetters(UserError):
    """More records of a source were rejected than ``max_dead_letters`` allows.

    Names operators, locations and reasons.
    """


class LossCause(enum.Enum):
    """The reason for which input is lost."""

    EXPIRED = "expired"
    """Records in front of a position were deleted. A reader may have passed them already."""
    MISSING = "missing"
    """No server that was asked shows the split. A server whose metadata are stale does not show it either."""
    REPLACED = "replaced"
    """Another input has the name of the split."""
    ALTERED = "altered"
    """Records that were read, or that are still needed, differ from those that existed."""


class InputLost(UserError):
    """Input that the job still needs is gone: retention deleted it, or the topic was truncated or recreated.

    ``cause`` decides whether a running job ends at once: see ``protocol.input_loss``.
    """

    def __init__(self, message: str, cause: LossCause = LossCause.ALTERED) -> None:
        super().__init__(message)
        self.cause = cause


class JobLocked(UserError):
    """Another supervisor runs this job on the same checkpoint directory."""


class Retryable(KafkaEosError):
    """The result is not known or not available yet. The same call may succeed later."""


class RegistryUnavailable(Retryable):
    """A schema registry does not respond."""


class PartialProgress(Retryable):
    """The call made progress but is not done; retry without a growing pause."""


class RestartFromCheckpoint(KafkaEosError):
    """This attempt cannot continue. Everything since the last decided epoch is undone and replayed."""


class ProcessLost(RestartFromCheckpoint):
    """A process of the attempt exited, was killed, or does not respond."""


class WorkersChanged(RestartFromCheckpoint):
    """The next attempt would run with more workers, or elsewhere. Raised right after a commit, and no failure."""


class EnvironmentFailed(RestartFromCheckpoint):
    """Something outside the job failed: a registry, a database, a disk, the network, memory.

    If a function or codec raised, the message names it, the operator, the current record and the error; see
    ``fault_attribution``. Also raised by a source or sink whose system does not respond or is busy, and if a broker
    refuses a record: the next attempt finds out which.
    """


class Fenced(KafkaEosError):
    """A newer term or a successor owns the job. Output that this process still writes is discarded."""


class Fatal(KafkaEosError):
    """The job stops, because continuing could lose or duplicate output."""


class CommittableLost(Fatal):
    """A decided epoch cannot be completed, and its message names all output concerned.

    Either output is gone while other output of the epoch was committed, or the outcome is unknown.
    """


class CorruptCheckpoint(Fatal):
    """A durable object fails its checksum, its length or its identity. Names the object."""


class Bug(KafkaEosError):
    """An internal rule was broken: a defect of this package, not of the user's code."""
