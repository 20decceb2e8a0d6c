"""Power cuts during ``publish``: after each prefix of its file operations, with each legal loss of what was not
synced, the manifest is complete or absent; and after ``publish`` returned it is complete.

The operations are recorded from a real publish. The model of the disk: the content of a file is what it was at
its last fsync, or anything that was written since (nothing, a torn part, zeros, all); a name is durable once
its directory was synced, and before that there or not.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_samples import JOB, MANIFEST

import kafka_eos
from kafka_eos.checkpoints import files
from kafka_eos.checkpoints.manifest import Manifest, decode, encode, load, publish
from kafka_eos.checkpoints.storage import LocalStorage

Operation = tuple[str, ...]


class Recorder:
    """Notes the operations that matter for durability while they really happen."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.operations: list[Operation] = []
        self._names: dict[int, str] = {}
        real = {name: getattr(os, name) for name in ("open", "write", "fsync", "link", "unlink")}

        def opened(path: Path, flags: int, *mode: int) -> int:
            fd: int = real["open"](path, flags, *mode)
            self._names[fd] = str(path)
            if flags & os.O_CREAT:
                self.operations.append(("create", str(path)))
            return fd

        def written(fd: int, data: bytes) -> int:
            # Short writes are legal; taking them makes more prefixes.
            count: int = real["write"](fd, bytes(data)[:200])
            self.operations.append(("write", self._names[fd], bytes(data)[:count].hex()))
            return count

        def synced(fd: int) -> None:
            self.operations.append(("fsync", self._names[fd]))
            real["fsync"](fd)

        def linked(source: Path, target: Path, **kwargs: bool) -> None:
            self.operations.append(("link", str(source), str(target)))
            real["link"](source, target, **kwargs)

        def unlinked(path: Path, **kwargs: int) -> None:
            self.operations.append(("unlink", str(path)))
            real["unlink"](path, **kwargs)

        for name, function in zip(real, (opened, written, synced, linked, unlinked), strict=True):
            patch.setattr(files.os, name, function)


def possible_contents(operations: list[Operation], temporary: str) -> list[bytes]:
    """What the published file may hold after a power cut at the end of ``operations``."""
    written, synced = b"", b""
    for operation in operations:
        if operation[:2] == ("write", temporary):
            written += bytes.fromhex(operation[2])
        if operation == ("fsync", temporary):
            synced = written
    tail = written[len(synced) :]
    return list(dict.fromkeys([written, synced, synced + tail[: len(tail) // 2], synced + bytes(len(tail))]))


def states(operations: list[Operation], target: str) -> Iterator[bytes | None]:
    """Every content that ``target`` may have after the cut; None if it may be absent."""
    linked = [i for i, operation in enumerate(operations) if operation[0] == "link" and operation[2] == target]
    directory = ("fsync", str(Path(target).parent))
    if not linked or directory not in operations[linked[0] :]:
        yield None
    if linked:
        yield from possible_contents(operations, operations[linked[0]][1])


def recorded(tmp_path: Path) -> tuple[list[Operation], str]:
    storage = LocalStorage(tmp_path / "recorded")
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch)
        publish(storage, MANIFEST)
    return recorder.operations, str(storage.root / MANIFEST.name)


def test_every_crash_state_of_publish_is_absent_or_complete(tmp_path: Path) -> None:
    operations, target = recorded(tmp_path)
    seen = set()
    for length in range(len(operations) + 1):
        for number, content in enumerate(states(operations[:length], target)):
            storage = LocalStorage(tmp_path / f"{length}-{number}")
            if content is not None:
                (storage.root / MANIFEST.name).write_bytes(content)
            storage.tidy()
            names = list(storage.list("manifests"))
            found = [load(storage, Manifest, name, JOB) for name in names]
            seen.add(len(found))

            assert found in ([], [MANIFEST])

    assert seen == {0, 1}


def test_after_publish_returns_no_power_cut_takes_the_manifest_away(tmp_path: Path) -> None:
    operations, target = recorded(tmp_path)

    assert [decode(Manifest, MANIFEST.name, c or b"", JOB) for c in states(operations, target)] == [MANIFEST]


@pytest.mark.parametrize("forgotten", ["file", "directory"])
def test_the_enumeration_notices_a_forgotten_sync(tmp_path: Path, forgotten: str) -> None:
    """The oracle is worth something only if it fails for the mistakes that it is there for."""
    operations, target = recorded(tmp_path)
    syncs = [o for o in operations if o[0] == "fsync" and o[1].endswith("manifests") == (forgotten == "directory")]
    without = [o for o in operations if o not in syncs]
    good = {None, encode(MANIFEST)}
    reachable = set(itertools.chain.from_iterable(states(without[:n], target) for n in range(len(without) + 1)))

    assert syncs
    assert (None in set(states(without, target))) if forgotten == "directory" else (reachable - good)


@pytest.mark.parametrize(
    ("point", "decided"),
    [("manifest.staged", False), ("manifest.synced", False), ("manifest.renamed", True), ("manifest.published", True)],
)
def test_a_process_killed_while_publishing_leaves_all_or_nothing(tmp_path: Path, point: str, decided: bool) -> None:
    log = tmp_path / "log"
    child = subprocess.run(
        [sys.executable, "-c", _PUBLISH, str(tmp_path / "job")],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(Path(kafka_eos.__path__[0]).parent), str(Path(__file__).parent)]),
            "KAFKA_EOS_FAILPOINTS": f"{point}=kill",
            "KAFKA_EOS_FAILPOINT_LOG": str(log),
        },
        check=False,
    )
    storage = LocalStorage(tmp_path / "job")
    storage.tidy()

    assert (child.returncode, len(log.read_text().splitlines())) == (-signal.SIGKILL, 1)
    assert [path.name for path in (storage.root / "manifests").iterdir()] == [Path(MANIFEST.name).name] * decided
    assert [load(storage, Manifest, name, JOB) for name in storage.list("manifests")] == [MANIFEST] * decided


_PUBLISH = """
import sys
from pathlib import Path
from checkpoint_samples import MANIFEST
from kafka_eos.checkpoints.manifest import publish
from kafka_eos.checkpoints.storage import LocalStorage
publish(LocalStorage(Path(sys.argv[1])), MANIFEST)
"""
