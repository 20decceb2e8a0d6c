"""What tests start imports compiled code."""

from __future__ import annotations

import sys
from importlib.util import cache_from_source
from pathlib import Path

from tests.bytecode import Kept


def test_the_library_is_compiled_before_the_first_test() -> None:
    root = Path(__file__).parents[3]
    folders = (root / name for name in ("kafka_eos", "connectors", "schemas"))
    sources = [path for folder in folders for path in folder.rglob("*.py") if not path.is_symlink()]

    assert len(sources) > 100
    assert [path for path in sources if not Path(cache_from_source(str(path))).exists()] == []


def test_what_a_test_imports_itself_is_kept_as_the_environment_says() -> None:
    before = sys.dont_write_bytecode
    kept = Kept()
    assert not sys.dont_write_bytecode
    kept.end()

    assert sys.dont_write_bytecode is before
