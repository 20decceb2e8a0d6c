"""Every error of the package, grouped by what the caller must do next.

    KafkaEosError
    ├── UserError              the user changes something, then starts again
    │   ├── PlanError            the pipeline cannot be built as written
    │   ├── ConfigError          a setting, a broker option or the environment is wrong
    │   │   └── LoginRefused       who was let in before is refused now: passwords and certificates are renewed
    │   ├── PoisonRecord         one record cannot be processed
    │   ├── TooManyDeadLetters   more records are refused than the job may send aside
    │   ├── InputLost            records that the job still needed are gone from the source
    │   └── JobLocked            another supervisor runs this job
    ├── Retryable              call the same thing again, later
    │   ├── RegistryAway         the one who is asked is a schema registry
    │   └── GotFurther           not all is done yet, but more than before the call
    ├── RestartFromCheckpoint  throw this attempt away; go back to the last decided epoch
    │   └── EnvironmentFailed    user code or a codec failed, and its record is not to blame
    ├── Fenced                 a newer term or another life owns the job; stop without touching anything
    ├── Fatal                  stop the job; only a person can decide
    │   ├── CommittableLost      output that was promised can no longer be committed, or nobody can tell
    │   └── CorruptCheckpoint    a durable object is not what was written
    └── Bug                    our own mistake; please report it

Rule: a client library's error is mapped to one of these once, at the edge that calls the client.
"""

from __future__ import annotations

from typing import Literal


class KafkaEosError(Exception):
    """Root of the tree. Catch it to catch everything this package raises on purpose."""


class UserError(KafkaEosError):
    """The user must change something; restarting alone does not help."""


class PlanError(UserError):
    """The pipeline cannot be built as written. The message quotes the user's line."""


class ConfigError(UserError):
    """A setting, a broker option or the environment is wrong. The message says what to set."""


class LoginRefused(ConfigError):
    """A system does not let this job in, with a password, token or certificate that may be renewed meanwhile.

    At a start it is like any ConfigError. A job that has been let in goes back to its last decided epoch and tries
    again, as after EnvironmentFailed.
    """


class PoisonRecord(UserError):
    """A record could not be decoded, or user code raised on it.

    Attributes: ``where`` is ``topic/partition/offset`` of the input record, ``operator`` the name of
    the operator that refused it, ``reason`` the error and the lines of the user's code that led there. ``advice`` says
    what to do about it. Of what a timer or a window made, ``where`` names the firing, and ``what`` is "firing".
    """

    def __init__(
        self,
        where: str,
        operator: str,
        reason: str,
        advice: str = "Fix the code or the record, or send such records aside: "
        'pipeline.source(..., on_error=dead_letter("topic"))',
        *,
        what: Literal["record", "firing"] = "record",
    ) -> None:
        place = f"{where} (topic/partition/offset)" if what == "record" else f"{where},"
        super().__init__(
            f"the {what} at {place} failed in operator {operator!r}: {reason.rstrip('.')}. "
            f"Nothing was skipped. {advice}."
        )
        self.where, self.operator, self.reason = where, operator, reason


class TooManyDeadLetters(UserError):
    """More records of a source were refused than ``max_dead_letters`` allows. Names operators, places and reasons."""


class InputLost(UserError):
    """Input that the job still needed is gone: retention passed it, or the topic was cut or recreated."""


class JobLocked(UserError):
    """Another supervisor runs this job on the same checkpoint directory."""


class Retryable(KafkaEosError):
    """The answer is not known or not available yet. The same call may succeed later."""


class RegistryAway(Retryable):
    """A schema registry does not answer, or is in trouble."""


class GotFurther(Retryable):
    """Not all is done yet, but more than before the call: the pauses between calls begin anew."""


class RestartFromCheckpoint(KafkaEosError):
    """This attempt cannot go on. Everything since the last decided epoch is undone and replayed."""


class ProcessLost(RestartFromCheckpoint):
    """A process that took part ended by itself, was killed, or does not answer."""


class EnvironmentFailed(RestartFromCheckpoint):
    """A function or codec raised because something else failed: a registry, a database, the network, memory.

    The message names the function, the operator, the record at hand and what was raised; see ``attribution``.
    """


class Fenced(KafkaEosError):
    """A newer term owns the job, or another life of its name took over. What this process still writes is lost."""


class Fatal(KafkaEosError):
    """The job stops; going on could lose or double something."""


class CommittableLost(Fatal):
    """A decided epoch cannot be completed: output is gone and a sibling committed, or nobody can tell. Names all."""


class CorruptCheckpoint(Fatal):
    """A durable object fails its checksum, its length or its identity. Names the object."""


class Bug(KafkaEosError):
    """An internal rule was broken: a mistake of this package, not of the user."""
