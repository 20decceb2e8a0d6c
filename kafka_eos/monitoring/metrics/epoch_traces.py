"""An epoch as a trace: its parts and their times, assembled from the events of a job.

Pure but for the clock, a constructor argument. Rule: an epoch is exported once, when it is committed, aborted, or lost
with its attempt. A decided epoch outlives its attempt: recovery commits it, or revokes it. Times are seconds since the
Unix epoch. Workers' times are by the clocks of their machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field


class TraceSpan(Struct, frozen=True):
    """One timed phase of an epoch, with the attributes of its worker, operator or sink."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, str | int] = field(default_factory=dict)


class EpochTrace(Struct, frozen=True):
    """``term``: of the attempt that began it. ``failed``: why it was not committed, in words; None if it was."""

    epoch: int
    term: int
    began: float
    ended: float
    parts: tuple[TraceSpan, ...]
    records: int = 0
    failed: str | None = None


class _Epoch(Struct):
    term: int
    began: float
    spans: list[Mapping[str, Any]] = field(default_factory=list)
    decided: float | None = None
    records: int = 0
    lost: tuple[float, str] | None = None
    """The time at which its attempt ended, and the reason."""


class EpochTracer:
    """An observer that emits one EpochTrace per finished epoch.

    ``tell`` hears of each epoch that is over; ``wall`` is the calendar's clock.
    """

    def __init__(self, tell: Callable[[EpochTrace], None], wall: Callable[[], float]) -> None:
        self._emit, self._wall = tell, wall
        self._term = 0
        self._open: dict[int, _Epoch] = {}

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        epoch = self._open.get(facts.get("epoch", -1))
        match event:
            case "running":
                self._term = facts["term"]
                self._recovered(facts["base"])
            case "triggered":
                self._open[facts["epoch"]] = _Epoch(self._term, self._wall())
            case "phases" if epoch is not None:
                epoch.spans.extend(facts["spans"])
            case "decided" if epoch is not None:
                epoch.decided, epoch.records = self._wall(), sum(facts["records_by_sink"].values())
            case "aborted":
                self._over(facts["epoch"], failed="aborted: its output is part of the next epoch")
            case "committed":
                self._over(facts["epoch"], _commits(facts["commits"]))
            case "restarting":
                self._lost(f"{facts['what']}: {facts['reason']}")
            case "failed":
                self._lost(f"{facts['error']}: {facts['reason']}")
                self._all_over()

    def _lost(self, why: str) -> None:
        """Handle the end of an attempt: its undecided epochs are lost."""
        for number, epoch in list(self._open.items()):
            if epoch.decided is None:
                self._over(number, failed=why)
            elif epoch.lost is None:
                epoch.lost = self._wall(), why

    def _recovered(self, base: int) -> None:
        """Handle a recovery: everything up to epoch ``base`` is committed, and the job continues behind it."""
        for number, epoch in list(self._open.items()):
            if epoch.lost is not None and number <= base:
                self._over(number, [TraceSpan("recover", epoch.lost[0], self._wall())])
        self._all_over()

    def _all_over(self) -> None:
        for number, epoch in list(self._open.items()):
            self._over(number, failed="" if epoch.lost is None else epoch.lost[1])

    def _over(self, number: int, more: list[TraceSpan] | None = None, *, failed: str | None = None) -> None:
        epoch = self._open.pop(number, None)
        if epoch is not None:
            parts = (*_parts(epoch), *(more or ()))
            self._emit(EpochTrace(number, epoch.term, epoch.began, self._wall(), parts, epoch.records, failed))


def _commits(commits: Mapping[str, tuple[float, float]]) -> list[TraceSpan]:
    return [TraceSpan("commit", began, ended, {"sink": sink}) for sink, (began, ended) in commits.items()]


def _parts(epoch: _Epoch) -> Iterator[TraceSpan]:
    """Return the spans of an epoch. ``trigger``: until the first worker began; ``decide``: from the last ack to the
    manifest.
    """
    if epoch.spans:
        yield TraceSpan("trigger", epoch.began, max(epoch.began, min(span["started"] for span in epoch.spans)))
    for span in epoch.spans:
        operator = {"operator": span["operator"]} if span["operator"] else {}
        yield TraceSpan(span["phase"], span["started"], span["ended"], {"worker": span["worker"], **operator})
    if epoch.decided is not None:
        answered = max((span["ended"] for span in epoch.spans), default=epoch.began)
        yield TraceSpan("decide", min(answered, epoch.decided), epoch.decided)
