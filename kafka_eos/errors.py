"""Every error of the package, grouped by what the caller must do next.

    KafkaEosError
    ├── UserError              the user changes something, then starts again
    │   ├── PlanError            the pipeline cannot be built as written
    │   ├── ConfigError          a setting, a broker option or the environment is wrong
    │   ├── PoisonRecord         one record cannot be processed
    │   ├── InputLost            records that the job still needed are gone from the source
    │   └── JobLocked            another supervisor runs this job
    ├── Retryable              call the same thing again, later
    ├── RestartFromCheckpoint  throw this attempt away; go back to the last decided epoch
    ├── Fenced                 a newer term owns the job; stop without touching anything
    ├── Fatal                  stop the job; only a person can decide
    │   ├── CommittableLost      output that was promised can no longer be committed
    │   └── CorruptCheckpoint    a durable object is not what was written
    └── Bug                    our own mistake; please report it

Rule: a client library's error is mapped to one of these once, at the edge that calls the client.
"""

from __future__ import annotations


class KafkaEosError(Exception):
    """Root of the tree. Catch it to catch everything this package raises on purpose."""


class UserError(KafkaEosError):
    """The user must change something; restarting alone does not help."""


class PlanError(UserError):
    """The pipeline cannot be built as written. The message quotes the user's line."""


class ConfigError(UserError):
    """A setting, a broker option or the environment is wrong. The message says what to set."""


class PoisonRecord(UserError):
    """A record could not be decoded, or user code raised on it.

    Attributes: ``where`` is ``topic/partition/offset`` of the input record, ``operator`` the name of
    the operator that refused it, ``reason`` the error in one line. ``advice`` says what to do about it.
    """

    def __init__(
        self,
        where: str,
        operator: str,
        reason: str,
        advice: str = 'Fix the code or the record, or send such records aside with on_error=dead_letter("topic") on '
        "the source",
    ) -> None:
        super().__init__(
            f"the record at {where} (topic/partition/offset) failed in operator {operator!r}: {reason}. "
            f"Nothing was skipped. {advice}."
        )
        self.where, self.operator, self.reason = where, operator, reason


class InputLost(UserError):
    """Input that the job still needed is gone: retention passed it, or the topic was cut or recreated."""


class JobLocked(UserError):
    """Another supervisor runs this job on the same checkpoint directory."""


class Retryable(KafkaEosError):
    """The answer is not known or not available yet. The same call may succeed later."""


class RestartFromCheckpoint(KafkaEosError):
    """This attempt cannot go on. Everything since the last decided epoch is undone and replayed."""


class ProcessLost(RestartFromCheckpoint):
    """A process that took part ended by itself, was killed, or does not answer."""


class Fenced(KafkaEosError):
    """A newer term owns the job. Whatever this process still writes does not count."""


class Fatal(KafkaEosError):
    """The job stops; going on could lose or double something."""


class CommittableLost(Fatal):
    """A committable of a decided epoch is gone while a sibling is committed. Names both."""


class CorruptCheckpoint(Fatal):
    """A durable object fails its checksum, its length or its identity. Names the object."""


class Bug(KafkaEosError):
    """An internal rule was broken: a mistake of this package, not of the user."""
