"""Publication of a running job's events: to observers, and in a small file for other processes.

Rule: publication never changes the job. The file is replaced atomically, is not durable, and is not a source of truth.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from kafka_eos.core.failure_causes import error_name

STATUS = "status.json"
_EVERY = 0.2
_OFTEN = ("progress", "triggered", "phases", "decided", "restoring")


class Observer(Protocol):
    """A callback that receives every event of a job: its name and fields (JSON values)."""

    def __call__(self, event: str, facts: Mapping[str, object]) -> None: ...


class StatusFile:
    """The file ``status.json`` in the job directory: the latest fields of each kind of event.

    Format: ``{"pid": …, "at": ms, "counts": {event: number}, "last": {event: fields}, "when": {event: ms}}``, with the
    newest event last in ``when``. It is rewritten at most five times a second for frequent events, and at once for
    others.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATUS
        self._counts: dict[str, int] = {}
        self._last: dict[str, Mapping[str, object]] = {}
        self._when: dict[str, int] = {}
        self._written = 0.0

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        self._counts[event] = self._counts.get(event, 0) + 1
        self._last[event] = dict(facts)
        self._when.pop(event, None)
        self._when[event] = at = time.time_ns() // 1_000_000
        now = time.monotonic()
        if event in _OFTEN and now - self._written < _EVERY:
            return
        self._written = now
        staged = self._path.with_suffix(".tmp")
        shown = {"pid": os.getpid(), "at": at, "counts": self._counts, "last": self._last, "when": self._when}
        with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(shown))
        staged.replace(self._path)


def read_status(directory: Path) -> dict[str, object] | None:
    """Return the latest status of the job in ``directory``; None if it never ran. Raise ValueError for a foreign
    file.
    """
    try:
        status = json.loads((directory / STATUS).read_text())
    except FileNotFoundError:
        return None
    # Other programs also use this file name.
    if not isinstance(status, dict) or not all(isinstance(status.get(part), dict) for part in ("counts", "last")):
        raise ValueError("it is not a job's status")
    return status


# ---------------------------------------------------------------- observers
#
# Notification of a job's observers.
#
# Rule: publication never changes the job, whatever an observer raises and however long it takes. An external observer
# (a terminal, metrics, a user's callback) is called on a thread of its own. The job waits until the call returns, so
# that the display keeps up with the job; but only for some seconds, and no longer for an observer that has not
# returned.


_LOG: Final = logging.getLogger("kafka_eos.job")


_PATIENCE: Final = 5.0
"""Seconds that the job waits for an observer, once. At its end it waits as long for room in the queue, and again until
the observer has received all events."""


_BACKLOG: Final = 1000
"""Most events that are queued for an observer that has not returned."""


class ObserverBehind(Exception):
    """An observer has not returned yet. The message states which event it is processing."""


class Observers:
    """All observers of one job. Those that are ``given`` are called while this context is active."""

    def __init__(self, given: Iterable[Observer], patience: float = _PATIENCE, backlog: int = _BACKLOG) -> None:
        self._patience = patience
        self._threads = [_ObserverThread(observer, patience, backlog) for observer in given]
        self._all: tuple[Observer, ...] = tuple(self._threads)
        self._failing: set[Observer] = set()

    def add(self, *observers: Observer) -> None:
        """Add the job's own observers: they are called on the emitting thread, after the external ones."""
        self._all += observers

    def __enter__(self) -> Observers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in self._threads:
            each.close()

    def notify(self, event: str, facts: Mapping[str, object]) -> None:
        """Notify all observers of an event."""
        for observer in self._all:
            self._tell(observer, event, facts)

    def _tell(self, observer: Observer, event: str, facts: Mapping[str, object]) -> None:
        try:
            observer(event, facts)
        except Exception as error:  # noqa: BLE001 - a full disk, or a bug of a page or a library
            self._report_failure(observer, event, error)
        else:
            self._failing.discard(observer)

    def _report_failure(self, observer: Observer, event: str, error: Exception) -> None:
        """Report once that an observer has failed."""
        if observer in self._failing:
            return
        self._failing.add(observer)
        name = _name(observer)
        if isinstance(error, OSError):
            text = f"{name} cannot be written: {error}. The job continues"
        elif isinstance(error, ObserverBehind):  # not logged here: the blocked observer may be the terminal
            text = f"{name} {error}. The job continues without it"
        else:
            text = f"{name} failed on the event {event!r}: {error_name(error)}: {error}. The job continues without it"
            _LOG.error("%s", text, exc_info=error)
        for other in self._all:
            if other not in self._failing:
                self._tell(other, "observer-failed", {"observer": name, "at": event, "text": text})


class _Delivery:
    """One event for one observer."""

    def __init__(self, event: str, facts: Mapping[str, object]) -> None:
        self.event, self.facts = event, facts
        self.done = threading.Event()
        self.error: BaseException | None = None


class _ObserverThread:
    """An observer that runs on a thread of its own. Calling it raises the observer's error, or ObserverBehind."""

    def __init__(self, observer: Observer, patience: float, backlog: int) -> None:
        self.name = type(observer).__name__
        self._observer, self._patience = observer, patience
        self._events: queue.Queue[_Delivery | None] = queue.Queue(backlog)
        self._behind = False
        """True if the observer has not returned in time, and has not received all events since."""
        self._missed = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"tells {self.name}")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Deliver the queued events. An observer that does not return is abandoned; its thread ends with the
        process.
        """
        try:
            self._events.put(None, timeout=self._patience)
            self._thread.join(self._patience)
        except queue.Full:
            self._missed += 1
        if self._thread.is_alive():
            _LOG.error("%s has not returned, and does not show how the job ended", self.name)

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        delivery = _Delivery(event, facts)
        try:
            self._events.put_nowait(delivery)
        except queue.Full:
            self._missed += 1
            raise ObserverBehind("has not returned") from None
        if self._behind:
            raise ObserverBehind("has not returned")
        if not delivery.done.wait(self._patience):
            self._behind = True
            raise ObserverBehind(f"has not returned from the event {event!r} for {self._patience:g} s")
        if delivery.error is not None:
            raise delivery.error

    def _run(self) -> None:
        while (delivery := self._events.get()) is not None:
            try:
                self._observer(delivery.event, delivery.facts)
            except Exception as error:  # noqa: BLE001 - raised in the emitting thread, or logged
                delivery.error = error
            except BaseException as error:  # noqa: BLE001 - SystemExit would end this thread silently
                delivery.error = RuntimeError(f"{type(error).__name__} {error}")
            delivery.done.set()
            if self._behind:
                self._catch_up(delivery)

    def _catch_up(self, delivery: _Delivery) -> None:
        """Log the result of an event for which the job did not wait."""
        if delivery.error is not None:
            _LOG.error("%s failed on the event %r", self.name, delivery.event, exc_info=delivery.error)
        if self._events.empty():
            _LOG.warning("%s has returned; it missed %d events", self.name, self._missed)
            self._behind, self._missed = False, 0


def _name(observer: Observer) -> str:
    return observer.name if isinstance(observer, _ObserverThread) else type(observer).__name__
