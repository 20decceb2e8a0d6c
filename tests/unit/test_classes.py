"""The archive of classes: written once, used when it is whole, and gone when nobody uses it any more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kafka_eos.devbroker import classes

DAY = 86400.0


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(classes, "cache_dir", lambda: tmp_path)
    return tmp_path / "classes"


def options(jars: str = "/spark") -> str:
    return " ".join(classes.archive_options("/java", jars))


def written(options: str, content: bytes, age: float = 0.0) -> Path:
    """What Java leaves at the place that it was told."""
    part = Path(options.partition("ArchiveClassesAtExit=")[2])
    part.write_bytes(content)
    os.utime(part, (time.time() - age,) * 2)
    return part


def test_the_archive_that_a_session_has_written_is_used_by_the_next(directory: Path) -> None:
    written(options(), b"head and classes")

    told = options()

    (archive,) = directory.iterdir()
    assert f"-XX:SharedArchiveFile={archive}" in told
    assert archive.read_bytes() == b"head and classes"


def test_one_that_is_still_being_written_is_left_alone(directory: Path) -> None:
    """Java writes the head last."""
    part = written(options(), bytes(4) + b"classes")

    assert "ArchiveClassesAtExit" in options()
    assert part.exists()

    os.utime(part, (time.time() - DAY,) * 2)
    options()

    assert not part.exists()


def test_other_jars_have_an_archive_of_their_own(directory: Path) -> None:
    written(options(), b"head and classes")
    options()

    assert "ArchiveClassesAtExit" in options("/other")


def test_who_loads_few_classes_uses_an_archive_and_writes_none() -> None:
    told = options()
    assert [] == classes.reading_options("/java", "/spark")

    written(told, b"head and classes")

    assert classes.archive_options("/java", "/spark") == classes.reading_options("/java", "/spark") != []


def test_an_archive_that_nobody_has_used_for_months_is_deleted(directory: Path) -> None:
    written(options(), b"one")
    written(options("/other"), b"two")
    options()
    options("/other")
    for archive in directory.iterdir():
        os.utime(archive, (time.time() - 80 * DAY,) * 2)
    assert "SharedArchiveFile" in options()
    (unused,) = (archive for archive in directory.iterdir() if archive.read_bytes() == b"two")
    os.utime(unused, (time.time() - 91 * DAY,) * 2)

    assert "SharedArchiveFile" in options()
    assert [b"one"] == [archive.read_bytes() for archive in directory.iterdir()]


def test_a_cache_that_cannot_be_written_only_makes_the_start_slower(directory: Path) -> None:
    directory.parent.joinpath("classes").write_text("a file")

    assert [] == classes.archive_options("/java", "/spark") == classes.reading_options("/java", "/spark")
