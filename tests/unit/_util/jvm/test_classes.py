"""The archive of classes: written once, used when it is whole, and gone when nobody uses it any more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kafka_eos._util.jvm import class_cache as classes

HOUR, DAY = 3600.0, 86400.0


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(classes, "cache_dir", lambda: tmp_path)
    return tmp_path / "classes"


def reading() -> list[str]:
    return classes.find_archive_options("/java", "/spark").read_only


def options(jars: str = "/spark") -> str:
    return " ".join(classes.find_archive_options("/java", jars).read_write)


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
    assert reading() == []

    written(told, b"head and classes")

    assert " ".join(reading()) == options() != ""


def test_the_archives_that_were_used_last_are_kept(directory: Path) -> None:
    """Each environment has its own, and nobody tells when one of them is gone."""
    for hours, jars in enumerate("abcd"):
        written(options(jars), jars.encode())
        options(jars)
        (archive,) = (each for each in directory.iterdir() if each.read_bytes() == jars.encode())
        os.utime(archive, (time.time() - HOUR * (9 - hours),) * 2)
    assert "SharedArchiveFile" in options("a")  # used: it is the newest now

    written(options("e"), b"e")
    options("e")

    assert sorted(archive.read_bytes() for archive in directory.iterdir()) == [b"a", b"c", b"d", b"e"]


def test_what_an_interrupted_end_of_another_environment_left_is_cleared_up(directory: Path) -> None:
    half = written(options("/gone"), bytes(4) + b"classes", age=DAY)
    whole = written(options("/other"), b"head and classes")

    options()

    assert not half.exists()
    assert not whole.exists()
    assert [archive.suffix for archive in directory.iterdir()] == [".jsa"]


def test_a_cache_that_cannot_be_written_only_makes_the_start_slower(directory: Path) -> None:
    directory.parent.joinpath("classes").write_text("a file")

    assert options() == ""
    assert reading() == []
