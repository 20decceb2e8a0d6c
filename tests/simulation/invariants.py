"""What must hold after every step, whatever has crashed, slept or come twice.

Rule: these functions look only at what is durable and at the input. They know no coordinator and no worker.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.recovery import decided_epochs, find_missing_records
from tests.simulation.durable import Job, Manifest, Sink, Transaction, Violation
from tests.simulation.scenario import Row, Scenario


class Invariants:
    """Checks one run. Each method raises Violation and says what was found."""

    def __init__(self, scenario: Scenario, job: Job, sink: Sink) -> None:
        self._scenario, self._job, self._sink = scenario, job, sink
        self._rows = {row.id: row for row in chain.from_iterable(scenario.input())}
        self._seen = (-1, -1)
        self._checked: set[EpochId] = set()
        self._received: set[EpochId] = set()
        self.visible: set[tuple[int, int]] = set()
        """Rows whose output is committed."""
        self.delivered = False
        """Every row's output is committed, and every decided epoch is finished."""

    def check(self) -> None:
        """All of them, if anything durable has changed since the last call."""
        now = (self._job.version, self._sink.version)
        if now == self._seen:
            return
        self._seen = now
        for epoch in self._job.past.manifests.keys() - self._checked:
            self._checked.add(epoch)
            self._cut(self._job.past.manifests[epoch])
        history = self._job.history()
        self._one_lineage(history)
        self._retained(history)
        self._only_decided_output(history)
        self._receipts(history)
        self._no_successor_replaced()
        self.delivered = len(self.visible) == len(self._rows) and history[-1] in self._job.receipts

    # ------------------------------------------------------------ state(n)

    def _cut(self, manifest: Manifest) -> None:
        """state(n) and what is in flight are exactly the input below the offsets, and nothing of what follows."""
        visits: Counter[tuple[int, int, tuple[int, int], int]] = Counter()
        for (segment, key), entries in manifest.state.items():
            self._in_order(manifest, segment, key, [name for name, _ in entries])
            visits.update((segment, key, name, at) for name, at in entries)
        waiting: dict[tuple[int, int], list[int]] = {}
        for name, at in manifest.in_flight:
            waiting.setdefault(name, []).append(at)
        expected: Counter[tuple[int, int, tuple[int, int], int]] = Counter()
        for row in self._rows.values():
            path = self._scenario.path(row)
            if row.offset < manifest.offsets.get(row.split, 0):
                reached = min(waiting.get(row.id, [len(path)]))
                expected.update((path[at], row.keys[path[at]], row.id, at) for at in range(1, reached))
        if manifest.aligned and manifest.in_flight and not self._scenario.loop:
            raise Violation(f"epoch {manifest.id} was to leave nothing under way, and left {manifest.in_flight}")
        if lost := expected - visits:
            raise Violation(f"epoch {manifest.id} has lost {list(lost)}")
        if self._scenario.exact:
            self._nothing_early(manifest, visits - expected, waiting)

    def _nothing_early(
        self,
        manifest: Manifest,
        extra: Counter[tuple[int, int, tuple[int, int], int]],
        waiting: dict[tuple[int, int], list[int]],
    ) -> None:
        early = {row for _, _, row, _ in extra} | waiting.keys()
        early = {row for row in early if row[1] >= manifest.offsets.get(row[0], 0)}
        if early:
            raise Violation(f"rows {early} of a later epoch are in epoch {manifest.id}")
        if extra:
            raise Violation(f"epoch {manifest.id} has more than its input: {list(extra)}")
        if twice := {row: at for row, at in waiting.items() if len(at) > 1}:
            raise Violation(f"epoch {manifest.id} has in flight twice: {twice}")

    def _in_order(self, manifest: Manifest, segment: int, key: int, rows: list[tuple[int, int]]) -> None:
        """Rows of one split that took the same way arrive in the order of the input (loops change it)."""
        if self._scenario.loop or not self._scenario.exact:
            return
        newest: dict[tuple[int, tuple[int, ...]], int] = {}
        for split, offset in rows:
            way = split, self._rows[split, offset].keys[: segment + 1]
            if newest.get(way, -1) > offset:
                raise Violation(f"epoch {manifest.id}, segment {segment}, key {key}: {way} out of order")
            newest[way] = offset

    # ------------------------------------------------------------ decisions and output

    def _one_lineage(self, history: list[EpochId]) -> None:
        """What recovery believes is the one history there is, as far as it is stored, and its numbers only grow."""
        believed = [epoch for epoch in decided_epochs(self._job.facts()) if epoch in self._job.manifests]
        stored = [epoch for epoch in history if epoch in self._job.manifests]
        if believed != stored or history != sorted(set(history)):
            raise Violation(f"two lineages: {believed} and {stored} of {history}")
        if any(lost := find_missing_records(self._job.facts())):
            raise Violation(f"recovery would miss {lost}")

    def _retained(self, history: list[EpochId]) -> None:
        """Each epoch that is to stay is there, and each that is there is whole, also one that is about to go."""
        done = [n for n, epoch in enumerate(history) if epoch in self._job.past.receipts]
        first = max(done[-1] + 1 - self._scenario.retained, 0) if done else 0
        if missing := [epoch for epoch in history[first:] if epoch not in self._job.manifests]:
            raise Violation(f"epochs {missing} are gone, of {history}")
        for epoch in history:
            if epoch not in self._job.manifests:
                continue
            if lost := self._job.manifests[epoch].files - self._job.files:
                raise Violation(f"epoch {epoch} is stored, and {len(lost)} of its files are gone")
            if epoch in self._job.past.receipts - self._job.receipts:
                raise Violation(f"epoch {epoch} is stored, and its receipt is gone")

    def _only_decided_output(self, history: list[EpochId]) -> None:
        """Whatever is visible was named by a published manifest of the one lineage, and is visible once."""
        named = {t for epoch in history for t in self._job.past.manifests[epoch].committables}
        committed = {t for t, state in enumerate(self._sink.state) if state is Transaction.COMMITTED}
        if strangers := committed - named:
            raise Violation(f"transactions {strangers} are committed, but no decided epoch names them")
        visible = [(place, row) for t, place, row in self._sink.log if t in committed]
        self.visible = {row for _, row in visible}
        if self._scenario.exact and len(self.visible) < len(visible):
            raise Violation(f"visible twice: {[row for row, n in Counter(r for _, r in visible).items() if n > 1]}")

    def _no_successor_replaced(self) -> None:
        """A process that cleans up takes the term after its own, and so no term above its successor's."""
        if taken := {t: mine for t, mine in self._job.past.successions.items() if t != mine.next()}:
            raise Violation(f"terms {taken} were taken to clean up, although there was a successor")

    def _receipts(self, history: list[EpochId]) -> None:
        """An epoch with a receipt is visible as a whole, and so is everything before it: no more, no less."""
        done = [n for n, epoch in enumerate(history) if epoch in self._job.past.receipts]
        if not done or history[done[-1]] in self._received:
            return
        epoch = history[done[-1]]
        self._received.add(epoch)
        named = {t for e in history[: done[-1] + 1] for t in self._job.past.manifests[e].committables}
        if missing := {t for t in named if self._sink.state[t] is not Transaction.COMMITTED}:
            raise Violation(f"epoch {epoch} has a receipt, but transactions {missing} are not committed")
        outputs: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        for transaction, (key, number), row in self._sink.log:
            if transaction in named:
                outputs.setdefault(key, []).append((number, row))
        self._match(self._job.past.manifests[epoch], outputs)

    def _match(self, manifest: Manifest, outputs: dict[int, list[tuple[int, tuple[int, int]]]]) -> None:
        """Output of each key, in the order of the log, is what the state of the last segment has counted."""
        last = self._scenario.segments - 1
        for key in {key for segment, key in manifest.state if segment == last} | outputs.keys():
            entries = manifest.state.get((last, key), [])
            counted = [row for row, at in entries if at == len(self._scenario.path(self._row(row))) - 1]
            found = outputs.get(key, [])
            if self._scenario.exact and found != list(enumerate(counted, 1)):
                raise Violation(f"epoch {manifest.id}, key {key}: output {found}, but state {counted}")
            if lost := set(counted) - {row for _, row in found}:
                raise Violation(f"epoch {manifest.id}, key {key}: the output of {lost} is missing")

    def _row(self, row: tuple[int, int]) -> Row:
        return self._rows[row]
