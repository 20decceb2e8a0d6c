"""The whole job at a halt, for an epoch that must find nothing under way: the sources wait, and all rows are processed.

Rule: ``protocol.quiescence`` says when it is quiet; here its questions are asked, round after round.
"""

from __future__ import annotations

from collections.abc import Callable

from kafka_eos.embedded.control import Count, Counted, GoOn, Halt, Message
from kafka_eos.protocol.quiescence import Counts, Round


class Standstill:
    """Of one attempt. ``tell`` reaches all workers."""

    def __init__(self, session: int, subtasks: frozenset[int], tell: Callable[[Message], None]) -> None:
        self._session, self._subtasks, self._tell = session, subtasks, tell
        self._round: Round | None = None
        self.quiet = False

    def begin(self) -> None:
        """Halt the sources, and ask until it is quiet; nothing happens if that is on its way."""
        if self._round is None:
            self._tell(Halt(session=self._session))
            self._ask(Round(0, self._subtasks))

    def counted(self, counted: Counted, subtask: int) -> None:
        """A worker has answered."""
        if self._round is None:
            return
        counts = Counts(counted.idle, counted.sent, counted.processed)
        self._round = self._round.answer(counted.round, subtask, counts)
        if self._round.quiet:
            self._round, self.quiet = None, True
        elif self._round.complete:
            self._ask(self._round.following())

    def end(self) -> None:
        """Let the sources go on, if they are at a halt."""
        if self.quiet:
            self.quiet = False
            self._tell(GoOn(session=self._session))

    def _ask(self, round_: Round) -> None:
        self._round = round_
        self._tell(Count(session=self._session, round=round_.number))
