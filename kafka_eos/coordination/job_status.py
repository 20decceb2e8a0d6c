"""How a job stands, by what its supervisor shows of itself and by whether one is there.

Pure. Rule: a file that is not rewritten says nothing of now; whether the job runs is said by its lock alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kafka_eos.core.json_values import Json

How = Literal["starting", "running", "recovering", "stopped", "failed", "killed", "silent"]
_AT_WORK: Mapping[str, How] = {"running": "running", "restarting": "recovering"}
"""By the event that says so."""


@dataclass(frozen=True, slots=True)
class Standing:
    """``committed``: seconds since the newest commit, or since the job began to process if there was none."""

    job: str
    how: How
    pid: int | None = None
    host: str | None = None
    """Of a job that another machine leads, or led last: that one. What only its own directory knows is None then."""
    why: str | None = None
    """Of a job that failed or goes back to a checkpoint: the reason."""
    epoch: int | None = None
    """The newest committed one of this run."""
    committed: float | None = None
    lag: int | None = None
    records_in: int | None = None
    records_out: int | None = None
    """Both since the session began."""
    workers: int | None = None
    restarts: int = 0
    dead_letters: int = 0
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """By operator."""

    @property
    def is_fault(self) -> bool:
        """Did it end without having committed everything, or can nobody tell?"""
        return self.how in ("failed", "killed", "silent")

    def late(self, within: float) -> str | None:
        """What is wrong with a job that should run, and commit every ``within`` seconds; None if nothing is."""
        if self.how != "running":
            return f"is {self.how}"
        if self.committed is None or self.committed > within:
            ago = "never" if self.committed is None else f"{self.committed:,.0f} s ago"
            return f"committed {ago}, and should every {within:g} s"
        return None

    def as_json(self) -> dict[str, Json]:
        return asdict(self)


def standing(job: str, status: Mapping[str, Any], held: bool, now: int) -> Standing:
    """``status``: as in ``status.json``. ``held``: does a supervisor hold the lock? ``now``: ms since the epoch."""
    last, when, counts = status["last"], status.get("when", {}), status["counts"]
    how = _at_work(when) if held else _ended(last)
    progress, committed = last.get("progress", {}), when.get("committed", when.get("running"))
    letters = last.get("dead-letters", {}).get("total", {})
    return Standing(
        job,
        how,
        pid=status["pid"] if held else None,
        why=_why(how, last, when),
        epoch=last.get("committed", {}).get("epoch"),
        committed=None if committed is None else max(0.0, (now - committed) / 1000),
        lag=progress.get("lag"),
        records_in=progress.get("records_in"),
        records_out=progress.get("records_out"),
        workers=last.get("running", {}).get("parallelism"),
        restarts=counts.get("restarting", 0),
        dead_letters=sum(sum(by.values()) for by in letters.values()),
        state_bytes=last.get("decided", {}).get("state_bytes_by_operator", {}),
    )


def _at_work(when: Mapping[str, int]) -> How:
    """The times are in the order of the events; two may have one, and a clock may go back."""
    told: list[How] = [_AT_WORK[event] for event in when if event in _AT_WORK]
    return told[-1] if told else "starting"


def _ended(last: Mapping[str, object]) -> How:
    """Whoever was killed had no time to say that it ended."""
    return "stopped" if "stopped" in last else "failed" if "failed" in last else "killed"


def _why(how: How, last: Mapping[str, Any], when: Mapping[str, int]) -> str | None:
    """A notice says what a start waits for only if nothing has happened since."""
    match how:
        case "failed":
            return f"{last['failed']['error']}: {last['failed']['reason']}"
        case "killed":
            return "it ended without a word; nothing is lost, and the next start goes on at the last checkpoint"
        case "recovering":
            return f"{last['restarting']['what']}: {last['restarting']['reason']}"
        case "starting" if [*when][-1:] == ["notice"]:
            return str(last["notice"]["text"])
        case _:
            return None
