"""What workers leave on the disks of their machine."""

from __future__ import annotations

from pathlib import Path

from kafka_eos.config.settings import Settings
from kafka_eos.embedded.worker_process import remove_local_state


def test_the_local_state_of_each_worker_is_removed_from_each_disk_and_nothing_else(tmp_path: Path) -> None:
    disks = [tmp_path / name for name in ("one", "two")]
    settings = Settings.resolve(code={"checkpoint_dir": tmp_path / "jobs", "state_dir": disks, "parallelism": 3})
    for job in ("orders", "others"):
        for disk in disks:
            for subtask in range(3):
                (disk / job / str(subtask) / "rows").mkdir(parents=True)
        (disks[0] / job / "lock").touch()
    (disks[1] / "orders" / "1" / "rows").rmdir()
    (disks[1] / "orders" / "1").rmdir()
    (disks[1] / "orders").joinpath("1").touch()  # what cannot be removed does not keep the rest

    remove_local_state(settings, "orders")

    assert sorted(path.name for path in disks[0].joinpath("orders").iterdir()) == ["lock"]
    assert sorted(path.name for path in disks[1].joinpath("orders").iterdir()) == ["1"]
    assert [len([*disk.joinpath("others").glob("*/rows")]) for disk in disks] == [3, 3]
