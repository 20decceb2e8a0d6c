"""The sink's records in a file system that only Spark reaches keep the contract of local ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.structured_streaming import spark_checkpoint as hadoop
from kafka_eos.structured_streaming.spark_checkpoint import (
    OURS,
    HadoopCommitLog,
    HadoopFiles,
    LocalCommitLog,
    check_exclusive_create,
    local_path,
    open_checkpoint,
)

NAME = "manifests/000000000001-00000001.json"


@pytest.fixture(params=["local", "viewfs"])
def place(request: Any, spark: Any, tmp_path: Path, viewfs: Callable[[Path], str]) -> tuple[str, Path | None]:
    checkpoint = str(tmp_path) if request.param == "local" else viewfs(tmp_path)
    return checkpoint, local_path(spark, checkpoint)


@pytest.fixture
def storage(place: Any, spark: Any) -> CheckpointStorage:
    return open_checkpoint(spark, *place)[0]


def test_what_is_published_is_read_and_listed(storage: CheckpointStorage, tmp_path: Path) -> None:
    storage.publish(NAME, b"one\x00\xff")

    assert storage.read(NAME) == b"one\x00\xff"
    assert storage.list("manifests") == [NAME]
    assert (tmp_path / OURS / NAME).read_bytes() == b"one\x00\xff"


def test_nothing_is_published_twice(storage: CheckpointStorage) -> None:
    storage.publish(NAME, b"one")

    with pytest.raises(FileExistsError):
        storage.publish(NAME, b"two")
    assert storage.read(NAME) == b"one"


def test_what_is_absent(storage: CheckpointStorage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read(NAME)
    storage.delete(NAME)
    assert storage.list("receipts") == []


def test_files_by_content(storage: CheckpointStorage, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(b"content")

    ref = storage.upload(source, "state.bin")
    passed: list[int] = []
    storage.fetch(storage.upload(source, "state.bin"), back, passed.append)

    assert sum(passed) == len(b"content")
    assert back.read_bytes() == b"content"
    (tmp_path / OURS / "shared" / ref.sha256).write_bytes(b"altered")
    (tmp_path / OURS / "shared" / f".{ref.sha256}.crc").unlink(missing_ok=True)
    with pytest.raises(CorruptCheckpoint):
        storage.fetch(ref, tmp_path / "again")


def test_decisions(place: Any, spark: Any, tmp_path: Path) -> None:
    decisions = open_checkpoint(spark, *place)[1]
    assert decisions.find_latest_batch() is None
    assert not decisions.has(0)

    (tmp_path / "commits").mkdir()
    for name in ("9", "10", ".10.crc", ".11.tmp"):
        (tmp_path / "commits" / name).touch()

    assert decisions.has(9)
    assert not decisions.has(11)
    assert decisions.find_latest_batch() == 10


def test_where_a_checkpoint_is(spark: Any, tmp_path: Path, viewfs: Callable[[Path], str]) -> None:
    assert local_path(spark, str(tmp_path)) == tmp_path
    assert local_path(spark, tmp_path.as_uri()) == tmp_path
    assert local_path(spark, f"file:{tmp_path}") == tmp_path
    assert local_path(spark, viewfs(tmp_path)) is None
    assert isinstance(open_checkpoint(spark, str(tmp_path), tmp_path), tuple)
    assert isinstance(open_checkpoint(spark, str(tmp_path), tmp_path)[1], LocalCommitLog)
    assert isinstance(open_checkpoint(spark, viewfs(tmp_path), None)[1], HadoopCommitLog)
    assert isinstance(open_checkpoint(spark, str(tmp_path), tmp_path)[0], LocalStorage)


_REPLACES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def test_a_store_that_replaces_what_is_there_is_refused(
    spark: Any, tmp_path: Path, viewfs: Callable[[Path], str]
) -> None:
    """Nobody could tell which of two drivers has claimed the query, nor whose decision Spark's commit is."""
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", _REPLACES)
    try:
        with pytest.raises(ConfigError, match="FileSystemBasedCheckpointFileManager, which overwrites files"):
            open_checkpoint(spark, viewfs(tmp_path), None)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")


def test_of_two_writers_one_gets_a_name(spark: Any, tmp_path: Path, viewfs: Callable[[Path], str]) -> None:
    files = HadoopFiles(spark, viewfs(tmp_path))
    files.make(OURS)

    check_exclusive_create(files)

    assert files.scheme == "file", "what is mounted"
    assert files.names(OURS) == []


def test_an_object_store_is_refused(
    spark: Any, tmp_path: Path, viewfs: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another Spark could reach one; here the file system below the mount counts as one."""
    monkeypatch.setattr(hadoop, "_OBJECT_STORES", {"file"})

    with pytest.raises(ConfigError, match="file: is an object store"):
        open_checkpoint(spark, viewfs(tmp_path), None)
