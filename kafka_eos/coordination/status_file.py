"""What a running job shows of itself: events to observers, and a small file that others may read.

Rule: showing never changes the job. The file is replaced atomically and is not durable; it is no source of truth.
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

from kafka_eos.core.failure_causes import kind_of

STATUS = "status.json"
_EVERY = 0.2
_OFTEN = ("progress", "triggered", "phases", "decided", "restoring")


class Observer(Protocol):
    """Hears every event of a job: its name and facts (JSON values)."""

    def __call__(self, event: str, facts: Mapping[str, object]) -> None: ...


class StatusFile:
    """Keeps ``status.json`` in the job directory: the latest facts of each kind of event.

    Shape: ``{"pid": …, "at": ms, "counts": {event: how often}, "last": {event: facts}, "when": {event: ms}}``,
    ``when`` with the newest event last. Rewritten at most five times a second, and at once for what happens seldom.
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
        staged.write_text(json.dumps(shown))
        staged.replace(self._path)


def read_status(directory: Path) -> dict[str, object] | None:
    """The latest status of the job in ``directory``, or None if it never ran. ValueError if the file is no status."""
    try:
        status = json.loads((directory / STATUS).read_text())
    except FileNotFoundError:
        return None
    # Other programs have files of that name, too.
    if not isinstance(status, dict) or not all(isinstance(status.get(part), dict) for part in ("counts", "last")):
        raise ValueError("it is no status of a job")
    return status


# ---------------------------------------------------------------- observers
#
# Tells the observers of a job what happens to it.
#
# Rule: showing never changes the job, whatever an observer raises and however long it takes. One that comes from
# outside (a terminal, metrics, what a user brings) hears on a thread of its own. The job waits until it has heard, so
# that what is shown keeps step with what happens; but only for some seconds, and not again for one that has not come
# back.


_LOG: Final = logging.getLogger("kafka_eos.job")


_PATIENCE: Final = 5.0
"""Seconds that the job waits for an observer, once; at its end as long until there is room for that, and again until
it has heard all."""


_BACKLOG: Final = 1000
"""Events that are kept for an observer that has not come back."""


class Behind(Exception):
    """An observer has not come back yet. Its text says from what."""


class Observers:
    """All that hear of one job. Those that are ``given`` hear while this is entered."""

    def __init__(self, given: Iterable[Observer], patience: float = _PATIENCE, backlog: int = _BACKLOG) -> None:
        self._patience = patience
        self._apart = [_Apart(observer, patience, backlog) for observer in given]
        self._all: tuple[Observer, ...] = tuple(self._apart)
        self._mute: set[Observer] = set()

    def add(self, *observers: Observer) -> None:
        """The job's own: they hear on the thread that tells, after those from outside."""
        self._all += observers

    def __enter__(self) -> Observers:
        for each in self._apart:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in self._apart:
            each.close()

    def tell(self, event: str, facts: Mapping[str, object]) -> None:
        """Tell all of them."""
        for observer in self._all:
            self._tell(observer, event, facts)

    def _tell(self, observer: Observer, event: str, facts: Mapping[str, object]) -> None:
        try:
            observer(event, facts)
        except Exception as error:  # noqa: BLE001 - whatever it raises: a full disk, a bug of a page or of a library
            self._cannot_show(observer, event, error)
        else:
            self._mute.discard(observer)

    def _cannot_show(self, observer: Observer, event: str, error: Exception) -> None:
        """It is said once to those who still hear, until it works again; the traceback of a bug is logged."""
        if observer in self._mute:
            return
        self._mute.add(observer)
        name = _name(observer)
        if isinstance(error, OSError):
            text = f"{name} cannot be written: {error}. The job goes on"
        elif isinstance(error, Behind):  # not logged here: it may be the terminal that holds everybody up
            text = f"{name} {error}. The job goes on without it"
        else:
            text = f"{name} has failed at the event {event!r}: {kind_of(error)}: {error}. The job goes on without it"
            _LOG.error("%s", text, exc_info=error)
        for other in self._all:
            if other not in self._mute:
                self._tell(other, "unshown", {"observer": name, "at": event, "text": text})


class _Told:
    """One event for one observer, until it has heard it."""

    def __init__(self, event: str, facts: Mapping[str, object]) -> None:
        self.event, self.facts = event, facts
        self.heard = threading.Event()
        self.error: BaseException | None = None


class _Apart:
    """An observer on a thread of its own. To call it raises what it raises, or Behind."""

    def __init__(self, observer: Observer, patience: float, backlog: int) -> None:
        self.name = type(observer).__name__
        self._observer, self._patience = observer, patience
        self._events: queue.Queue[_Told | None] = queue.Queue(backlog)
        self._behind = False
        """It has not come back in time, and not heard all since."""
        self._missed = 0
        self._thread = threading.Thread(target=self._hear, daemon=True, name=f"tells {self.name}")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """It hears what there is. One that does not come back is left behind; its thread ends with the process."""
        try:
            self._events.put(None, timeout=self._patience)
            self._thread.join(self._patience)
        except queue.Full:
            self._missed += 1
        if self._thread.is_alive():
            _LOG.error("%s has not come back, and does not show how the job ended", self.name)

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        told = _Told(event, facts)
        try:
            self._events.put_nowait(told)
        except queue.Full:
            self._missed += 1
            raise Behind("has not come back") from None
        if self._behind:
            raise Behind("has not come back")
        if not told.heard.wait(self._patience):
            self._behind = True
            raise Behind(f"has not come back from the event {event!r} for {self._patience:g} s")
        if told.error is not None:
            raise told.error

    def _hear(self) -> None:
        while (told := self._events.get()) is not None:
            try:
                self._observer(told.event, told.facts)
            except Exception as error:  # noqa: BLE001 - it is raised where the job tells, or logged
                told.error = error
            except BaseException as error:  # noqa: BLE001 - SystemExit would end this thread without a word
                told.error = RuntimeError(f"{type(error).__name__} {error}")
            told.heard.set()
            if self._behind:
                self._catch_up(told)

    def _catch_up(self, told: _Told) -> None:
        """After an event for which nobody has waited."""
        if told.error is not None:
            _LOG.error("%s has failed at the event %r", self.name, told.event, exc_info=told.error)
        if self._events.empty():
            _LOG.warning("%s has come back; %d events are missing in what it shows", self.name, self._missed)
            self._behind, self._missed = False, 0


def _name(observer: Observer) -> str:
    return observer.name if isinstance(observer, _Apart) else type(observer).__name__
