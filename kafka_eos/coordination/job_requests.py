"""Requests of other processes to a running job: each request is a file, and so is its answer.

A client calls ``submit``, then ``wait``. The supervisor calls ``clear_requests`` once at startup, then ``list_pending``
repeatedly and ``write_answer`` once per request. ``directory`` is the job's directory on the machine where it runs
(``Settings.job_dir``).
Rule: a request is for the supervisor that runs now. The next supervisor does not execute it.
"""

from __future__ import annotations

import os
import pwd
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
    """A request for a checkpoint and a savepoint of it in the absolute directory ``path``.

    With ``stop`` the job ends after that checkpoint: nothing is read after it, and no output is left open.
    """

    path: str
    stop: bool = False


class TakeCheckpoint(msgspec.Struct, frozen=True, tag="checkpoint", forbid_unknown_fields=True):
    """A request for a checkpoint now."""


class StopJob(msgspec.Struct, frozen=True, tag="stop", forbid_unknown_fields=True):
    """A request to stop the job: after a final checkpoint, or at once."""

    drain: bool = True


JobRequest: TypeAlias = TakeSavepoint | TakeCheckpoint | StopJob


class _SentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a request's file. ``by``: who asks, for the job's history."""

    request: JobRequest
    by: str


class RequestAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a request: the reason for a failure in ``error``, otherwise the committed epoch that served it."""

    epoch: int | None = None
    path: str | None = None
    error: str | None = None


class RequestUnanswered(Retryable):
    """The job ended before it answered, or did not answer in time."""


# ---------------------------------------------------------------- the client


def submit(directory: Path, request: JobRequest, by: str | None = None) -> str:
    """Write a request for the supervisor; return its token, for ``wait``.

    ``by``: who asks, for the job's history; by default the user and the process.
    """
    token = secrets.token_hex(8)
    sent = _SentRequest(request, by or _describe_process())
    _RequestFiles(directory).publish(paths.request_name(token), msgspec.json.encode(sent))
    return token


def _describe_process() -> str:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, users often have no name
        user = f"user {os.getuid()}"
    return f"{user}, process {os.getpid()}"


def wait(directory: Path, token: str, timeout: float) -> RequestAnswer:
    """Return the answer to a request. ``timeout`` in seconds.

    Raises RequestUnanswered, and withdraws the request, if no answer arrives in time or the job ended. Raises
    ConfigError with the supervisor's reason if the request failed.
    """
    box, deadline = _RequestFiles(directory), time.monotonic() + timeout
    try:
        while (answer := box.write_answer(token)) is None:
            # Check in this order: the answer is written before the request is deleted, and before the supervisor ends.
            asked = paths.request_name(token) in box.list(paths.REQUESTS)
            if not (asked and is_running(directory)):
                answer = box.write_answer(token)
                break
            if time.monotonic() > deadline:
                raise RequestUnanswered(
                    f"no response within {timeout:g} s; the request is withdrawn unless the job has begun to process it"
                )
            time.sleep(_NAP)
    finally:
        box.delete(paths.request_name(token))
        box.delete(paths.answer_name(token))
    if answer is None:
        raise RequestUnanswered("the job ended or was restarted before it answered; try again")
    if answer.error is not None:
        raise ConfigError(answer.error)
    return answer


def is_running(job_directory: Path) -> bool:
    """Return whether a supervisor on this machine runs the job in that directory."""
    return is_held(job_directory / paths.LOCK)


# ---------------------------------------------------------------- the supervisor


def clear_requests(directory: Path) -> None:
    """Delete requests to an earlier supervisor, and unread answers."""
    for left in (_RequestFiles(directory).root / paths.REQUESTS).iterdir():
        left.unlink()


def list_pending(directory: Path) -> list[tuple[str, JobRequest, str]]:
    """Return requests without an answer: token, request, and who asks.

    A request that cannot be decoded is answered with an error at once.
    """
    box = _RequestFiles(directory)
    names = [paths.parse_request_name(name) for name in box.list(paths.REQUESTS)]
    answered = {token for token, kind in names if kind == "answer"}
    found: list[tuple[str, JobRequest, str]] = []
    for token, kind in names:
        if kind == "request" and token not in answered:
            with suppress(FileNotFoundError):  # withdrawn meanwhile
                data = box.read(paths.request_name(token))
                try:
                    sent = msgspec.json.decode(data, type=_SentRequest)
                    found.append((token, sent.request, sent.by))
                except msgspec.DecodeError as error:
                    write_answer(
                        directory,
                        token,
                        RequestAnswer(
                            error=(
                                f"the running job uses a kafka-eos version that does not support this request: {error}"
                            )
                        ),
                    )
    return found


def write_answer(directory: Path, token: str, answer: RequestAnswer) -> None:
    """Answer a request. Do nothing if it is answered already."""
    box = _RequestFiles(directory)
    with suppress(FileExistsError):
        box.publish(paths.answer_name(token), msgspec.json.encode(answer))
    box.delete(paths.request_name(token))


def failure_answer(error: Exception) -> RequestAnswer:
    """Return the answer for a request that raised an exception."""
    what = str(error) or type(error).__name__
    return RequestAnswer(error=what if isinstance(error, KafkaEosError) else f"{type(error).__name__}: {what}")


class _RequestFiles(LocalFiles):
    """The directory of requests and answers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        files.make_directory(directory / paths.REQUESTS)

    def write_answer(self, token: str) -> RequestAnswer | None:
        try:
            return msgspec.json.decode(self.read(paths.answer_name(token)), type=RequestAnswer)
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> Path:
        if name != paths.REQUESTS:
            paths.parse_request_name(name)
        return self.root / name
