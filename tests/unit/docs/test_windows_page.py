"""docs/windows.md: each table says what comes out after each of its rows."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Stream, Windowed
from kafka_eos.testing import AdvanceClock, MemorySink, TimestampedValue, run_local

PAGE = (Path(__file__).parents[3] / "docs" / "windows.md").read_text(encoding="utf-8")
PROGRAM, *SHOWN = re.findall(r"^```python\n(.*?)^```$\n+((?:^\|[^\n]*\n)*)", PAGE, re.MULTILINE | re.DOTALL)
NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)


def test_every_block_has_its_table() -> None:
    assert len(SHOWN) >= 8
    assert all(table.startswith("| sale | at | what comes out |") for _, table in SHOWN)


@pytest.mark.parametrize(("code", "table"), SHOWN, ids=[re.findall(r'name="(.*?)"', code)[0] for code, _ in SHOWN])
def test_the_table_is_what_comes_out(code: str, table: str) -> None:
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM[0].partition("\n(\n")[0], names)
    *before, last = re.split(r"(?m)^(?=by_user)", code)
    exec("".join(before), names)
    stream: Stream[Any] = eval(last, names)  # noqa: S307
    stream.sink(MemorySink(), name="shown")
    if "LATE" in names:
        stream.side_output(names["LATE"]).sink(MemorySink(), name="late-rows")
    sales = [_given(names["Sale"], who, at) for who, at, _ in cells]
    now = round(NOON.timestamp() * 1000)

    so_far = [
        _said(run_local(names["pipeline"], {"sales": sales[:n]}, batch_size=1, now=now), cells)
        for n in range(len(sales) + 1)
    ]

    assert [", ".join(new[len(old) :]) for old, new in pairwise(so_far)] == [comes_out for *_, comes_out in cells]
    assert list(accumulate(map(len, so_far), max)) == list(map(len, so_far))


def test_the_program_writes_the_record_that_is_shown() -> None:
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM[0], names)
    sales = [TimestampedValue(names["Sale"](user="ann", amount=n), _milliseconds(f"12:0{n}")) for n in (3, 4, 5)]

    (record,) = run_local(names["pipeline"], {"sales": sales}).written["to-kafka"]

    assert record.value is not None
    assert f"`{record.value.decode()}`" in PAGE


def _given(kind: Any, who: str, at: str) -> TimestampedValue | AdvanceClock:
    if later := re.fullmatch(r"\*(\d+) s later\*", who):
        return AdvanceClock(int(later[1]))
    return TimestampedValue(_sale(kind, who), _milliseconds(at))


def _sale(kind: Any, who: str) -> Any:
    user, amount = who.split(", ")
    return kind(user=user, amount=int(amount))


def _milliseconds(at: str) -> int:
    date, _, time = at.rpartition(" ")
    day = NOON if not date else datetime.fromisoformat(date).replace(tzinfo=UTC)
    hour, minute, *second = map(int, time.split(":"))
    return round(day.replace(hour=hour, minute=minute, second=sum(second)).timestamp() * 1000)


def _said(out: dict[str, list[Any]], cells: list[list[str]]) -> list[str]:
    clock = "%Y-%m-%d %H:%M" if len(cells[0][1]) > len("12:00:00") else "%H:%M"

    def shown(value: Any) -> str:
        if not isinstance(value, Windowed):
            return f"`{value}`"
        edges = (value.window.start, value.window.end)
        dated = (datetime.fromtimestamp(at / 1000, UTC).strftime(clock) for at in edges)
        start, end = edges if edges[1] <= len(cells) else dated
        return f"`{value.key} {start}-{end}: {value.value}`"

    return [*map(shown, out["shown"]), *(f"late: `{sale.user}, {sale.amount}`" for sale in out.get("late-rows", ()))]
