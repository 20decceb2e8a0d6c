"""The input that other code than the audit's has processed, from the starts in a job's history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit.facts.code_changes import OtherCode, other_code
from kafka_eos.audit.facts.job_ledger import Ledger, read_ledger
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.storage.epoch_ledger import LedgerEntries, LedgerEntry
from kafka_eos.storage.job_storage import MemoryStorage

ENDS = {1: 10, 2: 20, 3: 30}
"""Where the only epoch of each term stopped reading."""


def entry(term: int) -> LedgerEntry:
    sources = {"orders": {SplitId("in/0"): {"offset": ENDS[term]}}}
    return LedgerEntry(EpochId(Epoch(term), Term(term)), 0, "", 1, False, sources, {}, 0, {}, {})


def ran(*starts: tuple[dict[str, str] | None, list[int]]) -> Ledger:
    """A job that was started with some files, each time for some terms."""
    events: list[Any] = []
    for files, terms in starts:
        events.append({"event": "started"} | ({} if files is None else {"code": files}))
        events += [{"event": "recovered", "term": term} for term in terms]
    entries = LedgerEntries(map(entry, ENDS))
    ledger = read_ledger(MemoryStorage(), "job", "nowhere")
    return replace(ledger, events=events, entries=entries, committed=frozenset(entries))


OLD, NEW = {"app.py": "19", "rules.py": "a"}, {"app.py": "20", "rules.py": "a"}


@pytest.mark.parametrize(
    ("starts", "term"),
    [
        ([(NEW, [1, 2, 3])], None),
        ([(OLD, [1]), (NEW, [2, 3])], 1),
        ([(OLD, [1, 2]), (NEW, [3])], 2),
        ([(OLD, [1]), (NEW, [2]), (OLD, [3])], 3),
        # The old code came back for one term: what is before that may depend on it, too.
        ([(NEW, [1]), (OLD, [2]), (NEW, [3])], 2),
        # A start of an older version recorded nothing, and a script may have loaded more files.
        ([(None, [1]), (NEW, [2, 3])], None),
        ([({"other.py": "x"}, [1]), (NEW | {"script.py": "y"}, [2, 3])], None),
        # No epoch of that term was committed.
        ([(OLD, [4]), (NEW, [1, 2, 3])], None),
    ],
)
def test_the_input_up_to_the_newest_epoch_of_other_code(starts: Any, term: int | None) -> None:
    found = other_code(ran(*starts), NEW)

    if term is None:
        assert found is None
    else:
        assert found == OtherCode(EpochId(Epoch(term), Term(term)), {"orders/in": {0: ENDS[term]}})
