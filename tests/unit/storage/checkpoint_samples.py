"""Records for tests of this folder."""

from __future__ import annotations

import msgspec

from kafka_eos.abc.committer import CommitOutcome, Committable, Spread
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef, PackedAt
from kafka_eos.core.ids import SplitId
from kafka_eos.storage.job_records import IdentityRecord, Manifest, Receipt, StoredRecord, TermBase, TermClaim
from kafka_eos.storage.savepoint_files import Savepoint, SavepointOrigin

JOB = "totals"
FILE = FileRef("000010.sst", "ab" * 32, 1089)
MANIFEST = Manifest(
    job=JOB,
    epoch=7,
    term=3,
    created_at=1_790_000_000_000,
    plan="f" * 16,
    max_key_groups=128,
    parallelism=1,
    sources={"orders": {SplitId("orders/0"): {"offset": 12, "nested": {"a": [1, None, "x", 1.5, True]}}}},
    states=(StateHandle("total", "rocksdb", (0, 127), (FILE,), ({"name": "sum", "key": {"name": "json"}},)),),
    committables=(
        Committable(
            "kafka:abc", {"producer_id": 4, "deep": {"b": []}}, 31, {"out": 30}, {"out": Spread("out", "murmur2", 2, 4)}
        ),
    ),
    identity="0123456789ab",
    registered_in=("kafka:abc",),
    carried_over=(Committable("postgres:db", {"version": 1}, 7),),
)
SAVEPOINT = Savepoint(
    job=JOB,
    id="0123456789abcdef",
    epoch=7,
    term=3,
    created_at=1_790_000_000_000,
    plan="f" * 16,
    max_key_groups=128,
    sources=MANIFEST.sources,
    operators=MANIFEST.states,
)
TOLD_BESIDE = msgspec.structs.replace(
    MANIFEST, epoch=8, committables=(Committable("kafka:abc", {}, 2, {"out": 2}, {}, FileRef("4-0", "cd" * 32, 77)),)
)
"""Of an epoch whose outputs do not say themselves where they came from."""
PACKED = msgspec.structs.replace(FILE, pack=PackedAt("ef" * 32, 3000, 1911))
WITH_A_PACK = msgspec.structs.replace(
    MANIFEST, epoch=9, states=(msgspec.structs.replace(MANIFEST.states[0], files=(FILE, PACKED)),)
)
RECORDS: tuple[StoredRecord, ...] = (
    MANIFEST,
    Receipt(job=JOB, epoch=7, term=3, created_at=1, outcomes=(CommitOutcome.COMMITTED, CommitOutcome.ALREADY)),
    TermClaim(job=JOB, term=3, host="h", pid=17, at=2),
    TermBase(job=JOB, term=3, resumed=(6, 2), reason="newest", at=3),
    TermBase(job=JOB, term=4, resumed=None, reason="fresh", at=3),
    SAVEPOINT,
    TermClaim(job=JOB, term=4, host="h", pid=17, at=2, identity="0123456789ab"),
    IdentityRecord(job=JOB, identity="0123456789ab", at=1),
    SavepointOrigin(job=JOB, savepoint=SAVEPOINT.id, path="/backup/totals", at=4),
    TOLD_BESIDE,
    WITH_A_PACK,
)
