"""RocksDB under every profile, within one bound of memory, on several file systems."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
from state_codecs import OTHER, TOTAL
from state_world import World, snapshot

from kafka_eos.abc.state import StateHandle
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.runtime.state import rocksdb_store as rocksdb
from kafka_eos.runtime.state.rocksdb_options import PROFILES, Profile, RocksDBTuning, StateOptions, spread
from kafka_eos.storage.job_storage import LocalStorage

VALUE = "x" * 500


@pytest.fixture
def world(tmp_path: Path) -> Any:
    world = World("rocksdb", LocalStorage(tmp_path / "job"), tmp_path)
    yield world
    world.close()


def test_a_state_moves_through_all_profiles(world: World) -> None:
    """There and back: also from one compaction style to the other, with files on several levels."""
    handles: list[StateHandle] = []
    expected: dict[Any, Any] = {}
    for lap, profile in enumerate([*PROFILES, *reversed(PROFILES)]):
        backend = world.open(handles, options=StateOptions.of(profile=profile))
        state = backend.value(TOTAL)
        for epoch in range(1, 15):
            for key in range(epoch * 10, epoch * 10 + 20):
                state.put(key, lap)
                expected[key] = lap
            handles = [snapshot(world, backend, epoch)]

        assert dict(state.items()) == expected
        assert [state.get(key) for key in (10, 159, 1000)] == [lap, lap, None]


@pytest.mark.parametrize(
    "alone",
    [
        {"write_buffer": 1 << 20},
        {"bloom_bits": 0},
        {"bloom_bits": 24},
        {"compaction": "universal"},
        {"memory": 8 << 20},
    ],
)
def test_each_option_works_alone(world: World, alone: dict[str, Any]) -> None:
    backend = world.open(options=StateOptions.of(**alone))
    state = backend.value(TOTAL)
    for key in range(5000):
        state.put(key, VALUE)
    restored = world.open([snapshot(world, backend)], options=StateOptions.of(**alone)).value(TOTAL)

    assert [restored.get(key) for key in (0, 4999, 5000)] == [VALUE, VALUE, None]


def test_operators_share_one_cache_that_does_not_outgrow_its_memory(world: World) -> None:
    """Write buffers are charged to it as well."""
    options = StateOptions(memory=9 << 20)
    blocks, buffers = rocksdb._memory(options.memory)
    states = [world.open(options=options, cache_entries=10).value(each) for each in (TOTAL, OTHER, TOTAL)]
    highest = 0
    for state in states:
        for key in range(0, 40_000, 1000):
            view = state.view(range(key, key + 1000))
            view.update(dict.fromkeys(range(key, key + 1000), VALUE))
            highest = max(highest, blocks.get_usage())
    for state in states:
        for key in range(0, 40_000, 97):
            assert state.get(key) == VALUE
        highest = max(highest, blocks.get_usage())

    assert buffers.get_buffer_size() == options.memory // 2
    assert 0 < highest <= 1.2 * options.memory


def test_settings_and_options_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"KAFKA_EOS_{name.upper()}", raising=False)
    given = {
        "state_memory": "512MB",
        "state_profile": "spinning-disk",
        "state_write_buffer": "16 MiB",
        "state_bloom_bits": 12,
        "state_compaction": "universal",
        "state_ttl_cleanup_rows": 5,
    }
    tuning = RocksDBTuning(16 << 20, 12, "universal", 64 << 10, 12)

    assert StateOptions.of(**Settings().state_options()) == StateOptions()
    assert StateOptions.of(**Settings.resolve(given).state_options()) == StateOptions(512 << 20, tuning, 5)
    assert set(get_args(Profile)) == set(get_args(Settings.model_fields["state_profile"].annotation)) == set(PROFILES)


@pytest.mark.parametrize(
    ("given", "size"), [(8 << 20, 8 << 20), ("9mb", 9 << 20), ("1.5 GiB", 3 << 29), ("9000KB", 9000 << 10)]
)
def test_sizes_are_bytes_or_have_a_unit_of_1024(given: Any, size: int) -> None:
    assert Settings.resolve({"state_memory": given}).state_memory == size


@pytest.mark.parametrize(
    "given",
    [
        {"state_memory": "much"},
        {"state_memory": "1MB"},
        {"state_memory": -1},
        {"state_memory": True},
        {"state_profile": "fast"},
        {"state_write_buffer": "200MB"},
        {"state_dir": 7},
    ],
)
def test_bad_options_are_named(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"setting {list(given)[-1]} "):
        Settings.resolve(given)


def test_local_state_is_in_one_place_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Settings(checkpoint_dir=Path("/home"))
    several = f"/a{os.pathsep}/b"
    monkeypatch.setenv("KAFKA_EOS_STATE_DIR", several)

    assert home.local_dirs("job") == (Path("/home/job/local"),)
    for one in ("/a", Path("/a"), ["/a"]):
        assert Settings.resolve({"state_dir": one}).local_dirs("job") == (Path("/a/job"),)
    for settings in (Settings.resolve(), Settings.resolve({"state_dir": ["/a", "/b"]})):
        again = Settings.from_json(json.dumps(settings.as_json()))

        assert again.local_dirs("job") == (Path("/a/job"), Path("/b/job"))


def test_operators_are_spread_over_directories() -> None:
    a, b = Path("/a"), Path("/b")

    assert spread(["x", "y", "z"], [a, b]) == {"x": a, "y": b, "z": a}
    assert spread(["x", "y", "z"], [a, b], subtask=1) == {"x": b, "y": a, "z": b}
    assert spread(["x", "y"], [a]) == {"x": a, "y": a}


def test_state_on_another_file_system_than_the_checkpoints(world: World, tmp_path: Path) -> None:
    """No link is possible: files are copied, there and back."""
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    world.root = other / f"kafka-eos-{os.getpid()}"
    try:
        backend = world.open()
        backend.value(TOTAL).put("a", 1)
        restored = world.open([snapshot(world, backend)])

        assert dict(restored.value(TOTAL).items()) == {"a": 1}
        assert snapshot(world, restored, 2).files
    finally:
        world.close()
        world._opened.clear()
        shutil.rmtree(world.root)
