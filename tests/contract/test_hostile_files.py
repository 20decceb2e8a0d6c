"""Ten thousand hostile files in each format that FileSource reads: rows, rows aside, or the file is named."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from test_file_source import CTX, ORDERS, WRITERS, Order

from kafka_eos.connectors.files import FileSource
from kafka_eos.connectors.files.row_formats import FORMATS
from kafka_eos.errors import ConfigError
from kafka_eos.interfaces import Services, TaskContext
from tests.unit.schemas.test_hostile import MOST_MEMORY, PAYLOADS, Memory, changed, payloads

QUOTES = b'"', b'""', b'","', b'"\n"', b"\r", b"\n", b",", b"\0", b"\xff", b'"y"z'


def hostile(good: bytes, number: int, payload: bytes) -> bytes:
    """Mostly files that begin well: what is no file of the format at all is refused at its first bytes."""
    chance = random.Random(number)
    match number % 4:
        case 0:
            return payload
        case 1:
            at = chance.randrange(len(good))
            return good[:at] + chance.choice(QUOTES) * chance.randrange(1, 40) + good[at:]
        case 2:
            return good[: chance.randrange(len(good))]
    return changed(good, chance)


@pytest.mark.campaign
@pytest.mark.parametrize("form", FORMATS)
def test_hostile_files_are_read_or_named_and_take_no_memory(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    WRITERS[form](path, ORDERS)
    good, rows = path.read_bytes(), 0
    refused: list[str] = []
    aside: list[str] = []
    services = Services(reject_record=lambda operator, raw, error: aside.append(str(raw.where)))
    memory: Any = None
    for number, payload in enumerate(payloads(good, seed=18)):
        path.write_bytes(hostile(good, number, payload))
        source: FileSource[Order] = FileSource(tmp_path, value=Order, format=form)
        reader = source.reader(TaskContext(CTX, 0, 1, "files", services), source.discover(CTX, None))
        try:
            while (batch := reader.poll(100, 0)) is not None:
                rows += len(batch.values)
        except ConfigError as error:
            refused.append(str(error))
        finally:
            reader.close()
        memory = Memory.watched() if number == 100 else memory  # libraries have been loaded

    assert memory.most < 2 * MOST_MEMORY
    assert rows > 0
    assert len(refused) + len(aside) > PAYLOADS / 10
    assert all(f"a.{form} cannot be read" in said for said in refused)
    assert all(where.startswith(f"a.{form}/0/") for where in aside)
