"""What other processes ask a running job to do: a request is a file, and so is its answer.

Whoever asks: ``submit``, then ``wait``. The supervisor: ``clear`` once when it starts, then ``pending`` now and then
and one ``answer`` for each request. ``directory`` is the job's on the machine where it runs (``Settings.job_dir``).

Rule: a request is for the supervisor that runs now. The next one does not carry out what was asked of this one.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from kafka_eos.coordination.job_lock import is_held
from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalFiles

_NAP = 0.05


class TakeSavepoint(msgspec.Struct, frozen=True, tag="savepoint", forbid_unknown_fields=True):
    """Take a checkpoint, and make a savepoint of it in the absolute directory ``path``.

    With ``stop`` the job ends after that checkpoint: nothing comes after it, and nothing is left open.
    """

    path: str
    stop: bool = False


class TakeCheckpoint(msgspec.Struct, frozen=True, tag="checkpoint", forbid_unknown_fields=True):
    """Take a checkpoint now."""


class Stop(msgspec.Struct, frozen=True, tag="stop", forbid_unknown_fields=True):
    """End the job: after a last checkpoint, or, without ``drain``, at once (the next start goes back to the last)."""

    drain: bool = True


Request: TypeAlias = TakeSavepoint | TakeCheckpoint | Stop


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a request. ``error`` says why it failed; else ``epoch`` is the committed epoch that it got."""

    epoch: int | None = None
    path: str | None = None
    error: str | None = None


class Unanswered(Retryable):
    """The job ended or was restarted before it answered, or did not answer in time."""


# ---------------------------------------------------------------- whoever asks


def submit(directory: Path, request: Request) -> str:
    """Leave a request for the supervisor; returns its token, for ``wait``."""
    token = secrets.token_hex(8)
    _Box(directory).publish(paths.request_name(token), msgspec.json.encode(request))
    return token


def wait(directory: Path, token: str, timeout: float) -> Answer:
    """The answer to a request. ``timeout`` in seconds.

    Raises Unanswered, and withdraws the request, if no answer comes in time or at all; ConfigError with the
    supervisor's reason if it could not do what was asked.
    """
    box, deadline = _Box(directory), time.monotonic() + timeout
    try:
        while (answer := box.answer(token)) is None:
            # In this order: the answer is there before the request goes, and before the supervisor ends.
            asked = paths.request_name(token) in box.list(paths.REQUESTS)
            if not (asked and is_running(directory)):
                answer = box.answer(token)
                break
            if time.monotonic() > deadline:
                raise Unanswered(f"no answer within {timeout:g} s; what the job has not begun yet is withdrawn")
            time.sleep(_NAP)
    finally:
        box.delete(paths.request_name(token))
        box.delete(paths.answer_name(token))
    if answer is None:
        raise Unanswered("the job ended or was restarted before it answered; try again")
    if answer.error is not None:
        raise ConfigError(answer.error)
    return answer


def is_running(job_directory: Path) -> bool:
    """Whether a supervisor runs the job in that directory, on this machine."""
    return is_held(job_directory / paths.LOCK)


# ---------------------------------------------------------------- the supervisor


def clear(directory: Path) -> None:
    """Drop what was asked of a supervisor that is gone, and answers that nobody has fetched."""
    for left in (_Box(directory).root / paths.REQUESTS).iterdir():
        left.unlink()


def pending(directory: Path) -> list[tuple[str, Request]]:
    """Requests without an answer, by token. One that cannot be understood is answered with that at once."""
    box = _Box(directory)
    names = [paths.parse_request_name(name) for name in box.list(paths.REQUESTS)]
    answered = {token for token, kind in names if kind == "answer"}
    found: list[tuple[str, Request]] = []
    for token, kind in names:
        if kind == "request" and token not in answered:
            with suppress(FileNotFoundError):  # withdrawn a moment ago
                data = box.read(paths.request_name(token))
                try:
                    found.append((token, msgspec.json.decode(data, type=Request)))
                except msgspec.DecodeError as error:
                    answer(directory, token, Answer(error=f"the job's kafka-eos does not know this request: {error}"))
    return found


def answer(directory: Path, token: str, answer: Answer) -> None:
    """Say what became of a request. Nothing happens if it is answered already."""
    box = _Box(directory)
    with suppress(FileExistsError):
        box.publish(paths.answer_name(token), msgspec.json.encode(answer))
    box.delete(paths.request_name(token))


def failed(error: Exception) -> Answer:
    """The answer for a request that ended in an exception."""
    what = str(error) or type(error).__name__
    return Answer(error=what if isinstance(error, KafkaEosError) else f"{type(error).__name__}: {what}")


class _Box(LocalFiles):
    """The directory of requests and answers: the same atomic files as everything else."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        files.make_directory(directory / paths.REQUESTS)

    def answer(self, token: str) -> Answer | None:
        try:
            return msgspec.json.decode(self.read(paths.answer_name(token)), type=Answer)
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> Path:
        if name != paths.REQUESTS:
            paths.parse_request_name(name)
        return self.root / name
