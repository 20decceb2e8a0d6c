"""Classes that real Java keeps for its next start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kafka_eos._util.jvm import class_cache as classes
from kafka_eos._util.jvm.java import find_java
from kafka_eos.audit.cluster import spark_session as session


def test_a_damaged_archive_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On real Java, which would die of it."""
    monkeypatch.setattr(classes, "cache_dir", lambda: tmp_path)
    java = find_java()
    program = tmp_path / "Said.java"
    program.write_text('class Said { public static void main(String[] a) { System.out.println("said"); } }')

    def said() -> tuple[int, str]:
        command = [java, *classes.find_archive_options(java, "jars").read_write, "--source", "17", str(program)]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
        return ended.returncode, ended.stdout

    assert said() == (0, "said\n")
    assert said() == (0, "said\n")
    (archive,) = (tmp_path / "classes").glob("*.jsa")
    content = bytearray(archive.read_bytes())
    for place in range(4096, len(content), 997):
        content[place] ^= 0xFF
    archive.write_bytes(content)

    assert said() == (0, "said\n")


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR"])
def test_no_classes_are_kept_where_directories_may_be_among_their_places(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java would write an error on standard output when it ends, into what the command has printed."""
    monkeypatch.setattr(classes, "cache_dir", lambda: tmp_path)
    for each in session.PLACES_OF_CLASSES:
        monkeypatch.delenv(each, raising=False)
    assert session.kept_classes() != []

    monkeypatch.setenv(variable, str(tmp_path))

    assert session.kept_classes() == []
