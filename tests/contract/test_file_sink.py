"""FileSink beyond the contract of every sink: names, bytes on disk, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable, Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.codecs import AvroCodec, StrCodec
from kafka_eos.connectors.files import FileSink, disk
from kafka_eos.connectors.files.sink.committer import FileCommitter
from kafka_eos.core.errors import (
    Bug,
    CommittableLost,
    ConfigError,
    CorruptCheckpoint,
    EnvironmentFailed,
    Fenced,
    PoisonRecord,
    Retryable,
)
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.provenance import parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.testing.list_source import ListOrigin

POINTS = ("sink.flush.before", "sink.flush.after", "sink.prepare.before", "sink.prepare.after")


def _job(term: int = 1, job: str = "orders") -> JobContext:
    return JobContext(job, Term(term), {})


def _epoch(epoch: int = 1, term: int = 1) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def _batch(values: Sequence[Any], start: int = 0) -> Batch[Any]:
    return Batch(list(values), range(len(values)), ListOrigin("in", "events", 3, start, values))


def _prepare(
    sink: FileSink, values: Sequence[Any], job: JobContext | None = None, operator: str = "out"
) -> Committable:
    job = job or _job()
    writer = sink.writer(TaskContext(job, 0, 1, operator))
    writer.write(_batch(values))
    (committable,) = writer.seal(EpochId(Epoch(1), job.term))()
    return committable


def _permit(sink: FileSink, committable: Committable) -> CommitPermit:
    decision = authorize(_epoch(), [sink.committer(_job()).probe(committable)], 0.0)
    assert isinstance(decision, CommitAuthorized)
    return decision.permit


def test_neighbours_of_a_refused_row_keep_their_provenance(tmp_path: Path) -> None:
    """Behind ``flat_map`` and an exchange values of one row are told apart by their branches."""
    refused: list[int] = []
    policy = Services(reject_row=lambda batch, index, operator, error: refused.append(index))
    writer = FileSink(tmp_path, envelope=True).writer(TaskContext(_job(), 0, 1, "out", policy))
    branches = ["0-0-", "0-1-", "0-2-", "0-0-"]
    values = ["a", object(), "c", "d"]
    writer.write(Batch(values, [0, 0, 0, 1], ListOrigin("in", "events", 3, 10, "xy"), branch=branches))
    (committable,) = writer.seal(_epoch())()
    lines = [json.loads(line) for line in (tmp_path / str(committable.payload["staged"])).read_text().splitlines()]

    assert refused == [1]
    assert [(line["value"], line["provenance"]) for line in lines] == [
        ("a", "orders.1.1/in/events/3/10/0.0-0-0"),
        ("c", "orders.1.1/in/events/3/10/0.0-2-0"),
        ("d", "orders.1.1/in/events/3/11/0.0-0-0"),
    ]


def test_the_file_of_an_epoch_lists_what_sinks_that_ask_for_it_have_written(tmp_path: Path) -> None:
    asking, silent = FileSink(tmp_path, epoch_files=True), FileSink(tmp_path)
    committables = [_prepare(silent, ["a"], operator="silent"), _prepare(asking, ["b"], operator="asking")]
    committer, permit = asking.committer(_job()), _permit(asking, committables[0])
    committer.commit_all(permit, committables)
    committer.announce(permit, committables)  # type: ignore[attr-defined]

    (told,) = (json.loads(path.read_text()) for path in (tmp_path / "_epochs").iterdir())
    assert [each["file"] for each in told["files"]] == ["part-000000000001-0000-orders.asking.jsonl"]


def test_a_part_is_json_lines_under_a_name_that_sorts_by_epoch(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, value=dict)
    committable = _prepare(sink, [{"a": 1}, {"b": "x\ny"}])
    sink.committer(_job()).commit(_permit(sink, committable), committable)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".committed.orders.1.1.0.out",
        "part-000000000001-0000-orders.out.jsonl",
    ]
    assert (tmp_path / "part-000000000001-0000-orders.out.jsonl").read_bytes() == b'{"a":1}\n{"b":"x\\ny"}\n'


def test_the_envelope_tells_where_each_line_came_from(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, envelope=True)
    writer = sink.writer(TaskContext(_job(7), 0, 1, "out", first_epoch=Epoch(4)))
    writer.write(Batch(["a", "b", "c"], [0, 0, 1], ListOrigin("in", "events", 3, 10, "xy"), lane=2, updates=[1, 2, 3]))
    (committable,) = writer.seal(_epoch(4, 7))()
    lines = [json.loads(line) for line in (tmp_path / str(committable.payload["staged"])).read_text().splitlines()]

    assert [line["value"] for line in lines] == ["a", "b", "c"]
    assert [line["provenance"] for line in lines] == [
        "orders.7.4/in/events/3/10/2.0/1",
        "orders.7.4/in/events/3/10/2.1/2",
        "orders.7.4/in/events/3/11/2.0/3",
    ]
    assert [str(parse_provenance(line["provenance"])) for line in lines] == [line["provenance"] for line in lines]


def test_rows_that_cannot_be_lines_are_left_out_where_the_policy_takes_them(tmp_path: Path) -> None:
    refused: list[tuple[int, str]] = []

    def reject(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        refused.append((rows.origin.raw(rows.origin_rows[index]).offset, f"{operator}: {error}"))

    sink = FileSink(tmp_path, value=str)
    writer = sink.writer(TaskContext(_job(), 0, 1, "out", Services(reject_row=reject)))
    writer.write(_batch([7, "a", "two\nlines", "b", 8]))
    (committable,) = writer.seal(_epoch())()

    assert (tmp_path / str(committable.payload["staged"])).read_text() == "a\nb\n"
    assert committable.records == 2
    assert [offset for offset, _ in refused] == [0, 2, 4]
    assert refused[1][1] == "out: its encoding contains a newline"


class Passing(StrCodec):
    """Fails on the value ``x``, the first time only."""

    def __init__(self, error: Exception) -> None:
        self._errors = [error]

    def encode(self, value: str) -> bytes:
        if value == "x" and self._errors:
            raise self._errors.pop()
        return super().encode(value)


@pytest.mark.parametrize("error", [ConnectionError("the registry is away"), OSError(28, "No space left on device")])
def test_a_codec_that_fails_in_passing_is_told_as_such(error: Exception, tmp_path: Path) -> None:
    """Not as a defect of this package, though the same value could be encoded a moment later."""
    writer = FileSink(tmp_path, value=Passing(error)).writer(TaskContext(_job(), 0, 1, "out"))

    with pytest.raises(EnvironmentFailed, match=type(error).__name__) as caught:
        writer.write(_batch(["a", "x", "b"], start=40))

    assert "events/3/41" in str(caught.value)
    assert not writer.seal(_epoch())()


@pytest.mark.parametrize("error", [ValueError("odd"), StopIteration()])
def test_no_row_goes_missing_behind_one_that_a_codec_refuses(error: Exception, tmp_path: Path) -> None:
    refused: list[int] = []
    policy = Services(reject_row=lambda batch, index, operator, error: refused.append(batch.origin_rows[index]))
    writer = FileSink(tmp_path, value=Passing(error)).writer(TaskContext(_job(), 0, 1, "out", policy))
    writer.write(_batch(["a", "two\nlines", "x", "b", "three\n"]))
    (committable,) = writer.seal(_epoch())()

    assert (tmp_path / str(committable.payload["staged"])).read_text() == "a\nb\n"
    assert (committable.records, refused) == (2, [1, 2, 4])


def test_jobs_and_operators_share_a_directory_without_meeting(tmp_path: Path) -> None:
    """Names are exact: ``a-b`` of job ``c`` is not ``b`` of job ``c-a``."""
    sink = FileSink(tmp_path)
    pairs = [("c", "a-b"), ("c-a", "b"), ("c-1-1-0", "b"), ("c", "1-1-0-b")]
    for job, operator in pairs:
        committable = _prepare(sink, [job, operator], _job(job=job), operator)
        sink.committer(_job(job=job)).commit(_permit(sink, committable), committable)

    assert len(list(tmp_path.glob("part-*.jsonl"))) == len(pairs)


def test_abort_orphans_leaves_every_file_alone_that_is_not_its_own(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    mine = _prepare(sink, ["x"])
    others = [".staged.orders", ".staged.orders.1.1.0", ".staged.orders-2.1.1.0.out", ".staged.orders.9.1.0.out"]
    others += [".staged.orders.1.1.0.out.bak", ".keep", "notes.txt"]
    others += [".committed.orders.1.1.0.out", ".aborted.orders.1.2.0.out"]
    for name in others:
        (tmp_path / name).touch()

    assert sink.committer(_job(9)).abort_leftovers(_job(9)) == [mine.payload["staged"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, ".aborted.orders.1.1.0.out"])
    assert (tmp_path / ".aborted.orders.1.1.0.out").stat().st_size == 0


def test_a_final_file_is_never_overwritten(tmp_path: Path) -> None:
    """A file of that name with other content stops the job and keeps its content."""
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["mine"])
    permit = _permit(sink, committable)
    final = tmp_path / str(committable.payload["final"])
    final.write_bytes(b'"else"\n')

    with pytest.raises(CommittableLost, match=f"{final.name}.*earlier incarnation of job 'orders'; move them away"):
        sink.committer(_job()).commit(permit, committable)
    assert final.read_bytes() == b'"else"\n'


def test_what_the_audit_is_shown_is_what_the_writer_writes(tmp_path: Path) -> None:
    """A row that cannot be a line is refused there as well."""
    sink, refused = FileSink(tmp_path, value=StrCodec()), []
    batch = _batch(["one", "two\nlines", "three"])

    kept, lines = sink.audit_rows(batch, "out", lambda rows, index, operator, error: refused.append(rows.values[index]))

    assert list(kept.values) == ["one", "three"]
    assert [line[1] for line in lines] == [b"one", b"three"]
    assert refused == ["two\nlines"]


# ---------------------------------------------------------------- what is there, and what is not


def test_the_checksum_decides_about_a_staged_file(tmp_path: Path) -> None:
    """Another content of the same size."""
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["x"])
    permit = _permit(sink, committable)
    (tmp_path / str(committable.payload["staged"])).write_bytes(b'"y"\n')

    assert sink.committer(_job()).probe(committable).status is CommitStatus.LOST
    with pytest.raises(CommittableLost, match="checksum"):
        sink.committer(_job()).commit(permit, committable)
    assert not list(tmp_path.glob("part-*"))


def test_a_staged_file_that_changed_between_probe_and_commit_is_not_committed(tmp_path: Path) -> None:
    """What a committer has read once it reads again if the file is not the same any more."""
    sink = FileSink(tmp_path)
    committable, committer = _prepare(sink, ["x"]), sink.committer(_job())
    assert committer.probe(committable).status is CommitStatus.PREPARED
    permit, staged = _permit(sink, committable), tmp_path / str(committable.payload["staged"])
    staged.write_bytes(b'"y"\n')
    os.utime(staged, (1, 1))

    with pytest.raises(CommittableLost):
        committer.commit(permit, committable)


def test_nothing_at_all_is_unknown_and_a_trace_made_by_hand_decides(tmp_path: Path) -> None:
    """Somebody cleaned up: the message says which file says what became of the rows."""
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["x"])
    (tmp_path / str(committable.payload["staged"])).unlink()
    committer = sink.committer(_job())
    seen = committer.probe(committable)
    committed, aborted = (tmp_path / f".{kind}.orders.1.1.0.out" for kind in ("committed", "aborted"))

    assert seen.status is CommitStatus.UNKNOWN
    assert f"touch {committed}" in seen.detail and f"touch {aborted}" in seen.detail
    committed.touch()
    assert committer.probe(committable).status is CommitStatus.COMMITTED
    committed.rename(aborted)
    assert committer.probe(committable).status is CommitStatus.LOST


def test_a_part_that_its_reader_changed_in_place_is_committed(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["x"])
    permit = _permit(sink, committable)
    sink.committer(_job()).commit(permit, committable)
    final = tmp_path / str(committable.payload["final"])
    final.write_bytes(b"")

    assert sink.committer(_job(2)).commit(permit, committable) is CommitOutcome.ALREADY
    assert final.read_bytes() == b""


def test_a_trace_stays_until_a_later_epoch_proves_that_nobody_asks_for_it(tmp_path: Path) -> None:
    """Epoch 1 is given up and committed with epoch 2; epoch 3 proves the receipt of 2; term 2 that of term 1."""
    sink, committer = FileSink(tmp_path), FileSink(tmp_path).committer(_job())
    writer = sink.writer(TaskContext(_job(), 0, 1, "out"))
    made = []
    for number in (1, 2, 3):
        writer.write(_batch([number]))
        made += writer.seal(_epoch(number))()

    def traces() -> list[str]:
        return sorted(path.name.split(".")[4] for path in tmp_path.glob(".committed.*"))

    for committable in made[:2]:
        committer.commit(CommitPermit(_epoch(2)), committable)
    assert traces() == ["1", "2"]
    committer.commit(CommitPermit(_epoch(3)), made[2])
    assert traces() == ["3"]

    again = FileSink(tmp_path).writer(TaskContext(_job(2), 0, 1, "out", first_epoch=Epoch(4)))
    again.write(_batch([4]))
    (committable,) = again.seal(_epoch(4, 2))()
    sink.committer(_job(2)).commit(CommitPermit(_epoch(4, 2)), committable)
    assert traces() == ["4"]


def test_traces_are_no_open_output(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["x"])
    committer = sink.committer(_job())
    committer.commit(_permit(sink, committable), committable)
    _prepare(sink, ["y"], operator="other")
    committer.abort_leftovers(_job(2))

    assert {path.name.split(".")[1] for path in tmp_path.glob(".*")} == {"committed", "aborted"}
    assert committer.list_staged(_job()) == []
    assert committer.abort_leftovers(_job(9)) == []


@pytest.mark.parametrize("step", ["create_empty", "sync_directory", "rename_new"])
@pytest.mark.parametrize("renames", ["as-it-can", "no-such-rename"])
def test_two_processes_that_commit_the_same_file_at_once_both_succeed(
    renames: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one commit is at any step, another runs from its beginning to its end."""
    if renames == "no-such-rename":
        monkeypatch.setattr(disk, "_rename_noreplace", disk._missing)
    sink = FileSink(tmp_path / "out")
    committable = _prepare(sink, ["x"])
    permit, real = _permit(sink, committable), getattr(disk, step)
    outcomes: list[CommitOutcome] = []

    def interrupted(*paths: Path) -> Any:
        monkeypatch.setattr(disk, step, real)
        outcomes.append(sink.committer(_job(2)).commit(permit, committable))
        return real(*paths)

    monkeypatch.setattr(disk, step, interrupted)
    outcomes.append(_committed(sink.committer(_job()), permit, committable))

    assert set(outcomes) == {CommitOutcome.ALREADY, CommitOutcome.COMMITTED}
    assert [path.read_text() for path in (tmp_path / "out").glob("part-*")] == ['"x"\n']


def _committed(committer: Committer, permit: CommitPermit, committable: Committable) -> CommitOutcome:
    """As the coordinator does: ask again when told to."""
    while True:
        with suppress(Retryable):
            return committer.commit(permit, committable)


def test_a_commit_whose_output_was_undone_at_that_moment_does_not_say_that_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie: between its look and its rename a newer term undoes the epoch, and commits a later one."""
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["x"])
    permit = _permit(sink, committable)
    real = disk.rename_new

    def interrupted(source: Path, target: Path) -> bool:
        sink.committer(_job(2)).abort_leftovers(_job(2))
        for trace in tmp_path.glob(".aborted.*"):
            trace.unlink()
        return real(source, target)

    monkeypatch.setattr(disk, "rename_new", interrupted)
    with pytest.raises(CommittableLost):
        sink.committer(_job()).commit(permit, committable)
    assert not list(tmp_path.glob("part-*"))


@pytest.mark.parametrize("renames", ["as-it-can", "no-such-rename"])
def test_a_rename_never_replaces(renames: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if renames == "no-such-rename":
        monkeypatch.setattr(disk, "_rename_noreplace", disk._missing)
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")

    with pytest.raises(FileExistsError):
        disk.rename_new(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "b"
    with pytest.raises(FileNotFoundError):
        disk.rename_new(tmp_path / "c", tmp_path / "d")
    assert disk.rename_new(tmp_path / "a", tmp_path / "c") is (renames == "as-it-can")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_check_says_if_a_rename_could_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("without replacing" in notice for notice in FileSink(tmp_path).check(_job()))
    monkeypatch.setattr(disk, "_rename_noreplace", disk._missing)

    assert any("without replacing" in notice for notice in FileSink(tmp_path).check(_job()))


@pytest.mark.parametrize("harm", ["shorter", "gone", "a-link"])
def test_a_staged_file_that_differs_from_its_committable_is_not_committed(harm: str, tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "out")
    committable = _prepare(sink, ["x", "y"])
    permit = _permit(sink, committable)
    staged = tmp_path / "out" / str(committable.payload["staged"])
    match harm:
        case "shorter":
            os.truncate(staged, 3)
        case "gone":
            staged.unlink()
        case "a-link":
            staged.rename(tmp_path / "elsewhere")
            staged.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CommittableLost, match=staged.name):
        sink.committer(_job()).commit(permit, committable)
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize(
    "change",
    [
        {"staged": "../.staged.orders.1.1.0.out"},
        {"staged": ".staged.orders.1.1.0.../../out"},
        {"final": "../part.jsonl"},
        {"final": "/etc/part.jsonl"},
        {"size": "7"},
        {"sha256": None},
        {"more": 1},
        {"version": 0},
        {"version": 2},
        {"version": "1"},
        {"announced": 1},
        {"final": "../part-000000000001-0000-orders.out.jsonl"},
        {"final": "day=1/../part-000000000001-0000-orders.out.jsonl"},
        {"final": "/day=1/part-000000000001-0000-orders.out.jsonl"},
        {"final": "part-000000000002-0000-orders.out.jsonl"},
        {"final": "part-000000000001-0000-orders.out.exe"},
        {"version": True},
        {"staged": ".committed.orders.1.1.0.out"},
    ],
)
def test_a_committable_that_leads_elsewhere_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["x"])
    permit = _permit(sink, committable)
    changed = replace(committable, payload=dict(committable.payload) | change)

    with pytest.raises(CorruptCheckpoint):
        sink.committer(_job()).probe(changed)
    with pytest.raises(CorruptCheckpoint):
        sink.committer(_job()).commit(permit, changed)


@pytest.mark.parametrize("name", ["../out", "a/b", "a.b", "", ".hidden"])
def test_names_that_are_no_tokens_never_reach_the_directory(name: str, tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "out")
    with pytest.raises(ConfigError):
        sink.writer(TaskContext(_job(), 0, 1, name))
    with pytest.raises(ConfigError):
        sink.writer(TaskContext(_job(job=name), 0, 1, "out"))


def test_a_permit_of_an_earlier_epoch_commits_nothing(tmp_path: Path) -> None:
    """One of a later epoch may: it carries the output of epochs that were given up."""
    sink = FileSink(tmp_path)
    committable = _prepare(sink, ["x"])
    permit = replace(_permit(sink, committable), epoch=_epoch(0))

    with pytest.raises(Bug):
        sink.committer(_job()).commit(permit, committable)
    assert (tmp_path / str(committable.payload["staged"])).exists()
    assert not list(tmp_path.glob("part-*"))


@pytest.mark.parametrize(
    ("sink_value", "values", "reason"),
    [(bytes, [b"fine", b"two\nlines"], "newline"), (str, ["fine", 5], "expected str"), (None, [1, object()], "JSON")],
)
def test_a_value_that_is_no_line_is_named_and_nothing_of_its_batch_is_staged(
    sink_value: Any, values: list[Any], reason: str, tmp_path: Path
) -> None:
    sink = FileSink(tmp_path, value=sink_value)
    writer = sink.writer(TaskContext(_job(), 0, 1, "out"))

    with pytest.raises(PoisonRecord, match=reason) as caught:
        writer.write(_batch(values, start=40))
    assert caught.value.where == "events/3/41"
    assert caught.value.operator == "out"
    assert not writer.seal(_epoch())()


def test_raw_lines_pass_unchanged(tmp_path: Path) -> None:
    committable = _prepare(FileSink(tmp_path, value=bytes), [b"\xff\x00", b""])

    assert (tmp_path / str(committable.payload["staged"])).read_bytes() == b"\xff\x00\n\n"


@pytest.mark.parametrize(("value", "envelope"), [(bytes, True), (str, True), ("avro", False)])
def test_a_format_that_does_not_fit_is_refused_at_once(value: Any, envelope: bool, tmp_path: Path) -> None:
    value = AvroCodec(Order) if value == "avro" else value
    with pytest.raises(ConfigError, match="a file of lines cannot hold values in the format"):
        FileSink(tmp_path, value=value, envelope=envelope)


class Order(BaseModel):
    id: int


def test_check_creates_the_directory_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "a" / "b")
    sink.check(_job())

    assert list((tmp_path / "a" / "b").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) & ~0o755 == 0


def test_check_names_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="must be writable"):
        FileSink(tmp_path / "file" / "out").check(_job())


def test_a_zombie_learns_that_a_newer_term_removed_its_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    writer = sink.writer(TaskContext(_job(1), 0, 1, "out"))
    writer.write(_batch(["x"]))
    removed = sink.committer(_job(2)).abort_leftovers(_job(2))

    assert removed == [".open.orders.1.1.0.out"]
    with pytest.raises(Fenced):
        writer.seal(_epoch())()


_WRITE = """
import sys
from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.testing.sink_harness import SinkUnderTest, SinkHarness, epoch_id
trial = SinkHarness(SinkUnderTest("kafka_eos.connectors.files:FileSink", {"directory": sys.argv[1]}, list), "orders")
try:
    trial.prepare(trial.writer(), epoch_id(1), 0, 3)
except RestartFromCheckpoint as error:
    print(error)
"""


def _write_with_failpoint(tmp_path: Path, failpoint: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(tmp_path / "out")],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "KAFKA_EOS_FAILPOINTS": failpoint,
            "KAFKA_EOS_FAILPOINT_LOG": str(tmp_path / "failpoints"),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert failpoint.replace("=", " ") in (tmp_path / "failpoints").read_text()
    return done


@pytest.mark.parametrize("point", POINTS)
def test_a_writer_killed_on_its_way_to_prepared_leaves_nothing_that_stays(point: str, tmp_path: Path) -> None:
    done = _write_with_failpoint(tmp_path, f"{point}=kill")

    assert done.returncode == -signal.SIGKILL
    assert not list((tmp_path / "out").glob("part-*"))
    assert len(FileSink(tmp_path / "out").committer(_job(2)).abort_leftovers(_job(2))) == 1
    assert {path.name.split(".")[1] for path in (tmp_path / "out").iterdir()} <= {"aborted"}


@pytest.mark.parametrize("action", ["error", "enospc"])
@pytest.mark.parametrize("point", POINTS)
def test_a_disk_that_fails_undoes_the_attempt(point: str, action: str, tmp_path: Path) -> None:
    done = _write_with_failpoint(tmp_path, f"{point}={action}")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"failpoint {point}" in done.stdout


def test_an_empty_name_is_no_directory() -> None:
    with pytest.raises(ConfigError, match=r"use FileSink\('\.'\)"):
        FileSink("")


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="this is a file"):
        FileSink(tmp_path / "file").check(_job())


def test_only_a_sink_of_a_directory_has_one(tmp_path: Path) -> None:
    assert FileSink(tmp_path / "out").directory == tmp_path / "out"
    with pytest.raises(ConfigError, match="s3://bucket/x is not a directory"):
        _ = FileSink("s3://bucket/x").directory


def test_a_start_that_goes_on_needs_the_directory_of_before(tmp_path: Path) -> None:
    """A disk that is not mounted looks like an empty directory."""
    sink = FileSink(tmp_path / "out")
    first = JobContext("orders", Term(1), {}, identity=JobIdentity("a1b2c3d4e5f6"))
    sink.check(first)
    committer = sink.committer(first)
    assert isinstance(committer, FileCommitter)
    committer.register(first)
    later = replace(first, term=Term(2), written_scopes=frozenset({sink.scope(first)}))
    sink.check(later)

    (tmp_path / "out").rename(tmp_path / "elsewhere")
    for there in (False, True):
        if there:
            (tmp_path / "out").mkdir()
        with pytest.raises(ConfigError, match="contains nothing of job 'orders', which has written there"):
            sink.check(later)
    FileSink(tmp_path / "another").check(later)

    (tmp_path / "out").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "out")
    sink.check(later)
