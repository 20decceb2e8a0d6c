"""Each cell of the table in docs/types.md is tried: values of its type, through its carrier.

A cell lists what becomes of values, in parts between semicolons. Rule: each part begins with one of ``SAID``, and the
values of ``VALUES`` have exactly the outcomes that the cell lists.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from kafka_eos.codecs import AvroCodec, JsonCodec, protobuf, state_codec
from kafka_eos.codecs.time_zones import same_time
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter, RestoredRecordEncoder, encode_dead_letter
from kafka_eos.connectors.postgres.columns import columns_of
from kafka_eos.core.errors import UserError
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import Provenance
from kafka_eos.core.records import RawRecord, Record, RejectedRecord
from tests.broker.kafka_kit import batch
from tests.contract.carriers import (
    Carrier,
    ExchangeCodec,
    ProvenanceText,
    ValidatedJson,
    by_codec,
    by_delta,
    by_file,
    by_iceberg,
    by_postgres,
    by_request,
    by_sqlite,
    by_table,
    is_same,
)
from tests.protobuf_witness import classes, proto3

PAGE: Final = Path(__file__).parents[2] / "docs/types.md"
SUMMER: Final = datetime.timezone(datetime.timedelta(hours=2))
NOON: Final = datetime.datetime(2026, 6, 1, 12, 30, 15, 123456)


class Kind(enum.StrEnum):
    PAID = "paid"


class Item(msgspec.Struct):
    amount: int


VALUES: Final[Mapping[str, tuple[Any, Sequence[Any]]]] = {
    "`str`": (str, ["", "a", 'ä\n"x", ', "5", "null", " b "]),
    "`str` with a zero byte": (str, ["a\0b"]),
    "`str` with a lone surrogate": (str, ["\ud800"]),
    "`bool`": (bool, [True, False]),
    "`int` of 64 bits": (int, [0, -5, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "`int` of more bits": (int, [2**64, -(2**63) - 1, 10**30]),
    "`float`": (float, [0.1, 0.0, 1e308, 5e-324, -1e16]),
    "`float`: NaN, infinity": (float, [math.nan, math.inf, -math.inf]),
    "`bytes`": (bytes, [b"", b"\x00\xff", b"abc"]),
    "`Decimal`": (decimal.Decimal, [*map(decimal.Decimal, ("1.50", "0", "-12345678901234567890.125"))]),
    "`date`": (datetime.date, [datetime.date(1970, 1, 1), datetime.date(2026, 6, 1)]),
    "`time`": (datetime.time, [datetime.time(0), NOON.time()]),
    "`timedelta`": (datetime.timedelta, [datetime.timedelta(0), datetime.timedelta(days=400, microseconds=1)]),
    "`datetime` in UTC": (datetime.datetime, [NOON.replace(tzinfo=datetime.UTC)]),
    "`datetime` with another offset": (datetime.datetime, [NOON.replace(tzinfo=SUMMER)]),
    "`datetime` without a zone": (datetime.datetime, [NOON]),
    "`UUID`": (uuid.UUID, [uuid.UUID(int=0), uuid.UUID("12345678-1234-5678-1234-567812345678")]),
    "`Enum`": (Kind, [Kind.PAID]),
    "`list[int]`": (list[int], [[], [1, 2]]),
    "`tuple[int, str]`": (tuple[int, str], [(1, "a")]),
    "`set[int]`": (set[int], [{1, 2}]),
    "`dict[str, int]`": (dict[str, int], [{}, {"a": 1, "": 2}]),
    "`dict[int, int]`": (dict[int, int], [{1: 2}]),
    "`dict` with keys `str` and `int`": (dict[str | int, int], [{"a": 1}, {1: 2, "1": 3}]),
    "a Struct in a field": (Item, [Item(1)]),
    "`Any`: texts, numbers, lists and dicts of these": (Any, ["a", [1, {"a": [True, None]}], {"a": 1.5}]),
    "`Any`: `bytes`": (Any, [[b"x"]]),
    "`Any`: tuples, sets, records, enums": (Any, [[(1,)], [{1}], [Item(1)], {"a": Kind.PAID}]),
}

TYPES: Final = {f"v{number}": tp for number, (tp, _) in enumerate(VALUES.values())}
"""The types of the cells of a row: one per row of the table."""

SAID: Final = {
    "`=`": "equal",
    "in UTC": "the same instant",
    "as the same number": "the same number",
    "rejected": "rejected",
    "refused": "refused",
    "–": "refused",
}
"""How a part of a cell begins, and the outcome of values. ``–``: there is no way to write such a value."""

Refuses = Callable[[Any], bool]
"""Returns whether a carrier refuses a type with the plan, or at the start."""


def row_of(types: Mapping[str, Any]) -> Any:
    fields = [(name, tp if tp is Any else tp | None, None) for name, tp in types.items()]
    return msgspec.defstruct("Row", [("id", int, 0), *fields])


def refused_by(build: Callable[[Any], object]) -> Refuses:
    def refuses(tp: Any) -> bool:
        try:
            build(row_of({"v": tp}))
        except UserError:
            return True
        return False

    return refuses


def by_cell(write: Callable[[Any], Any]) -> Carrier:
    """One value at a time, whichever cell it is in. ``write`` returns what came back, or raises ValueError."""

    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        back, rejected = list[Any](), set[int]()
        for index, value in enumerate(values):
            ((name, cell),) = ((n, c) for n, c in msgspec.structs.asdict(value).items() if n != "id" and c is not None)
            try:
                back.append(tp(**{name: write(cell)}))
            except ValueError:
                rejected.add(index)
        return back, rejected

    return carry


THING: Final = classes(
    proto3(
        "message Part { int64 amount = 1; }",
        "message Thing { string str = 1; bool bool = 2; int64 int = 3; double float = 4; bytes bytes = 5;",
        " Part Item = 6; repeated int64 list = 7; map<string, int64> dict = 8; }",
    )
)["Thing"]
IN_MESSAGES: Final = (str, bool, int, float, bytes, Item, list[int], dict[str, int])


def write_message(cell: Any) -> Any:
    field = type(cell).__name__
    made = THING(**{field: {"amount": cell.amount} if isinstance(cell, Item) else cell})
    codec = protobuf(THING)
    found = getattr(codec.decode(codec.encode(made)), field)
    return Item(found.amount) if isinstance(cell, Item) else type(cell)(found)


def write_letter(cell: str | bytes) -> Any:
    """As a key, or as the name of a header. ``test_equal_or_rejected`` does so with a broker."""
    key, headers = (cell, ()) if isinstance(cell, bytes) else (None, ((cell.encode().decode(), b""),))
    raw = RawRecord("orders", 0, 0, 1, key, None, headers)
    data, key, time, written = encode_dead_letter(RejectedRecord(raw, "parse", "ValueError", "no number"))
    letter = DeadLetter.from_record(Record(key, data, tuple(written), time))
    columns = RestoredRecordEncoder(in_place=False)(batch(letter))
    assert columns.headers is not None
    return next(iter(columns.keys)) if isinstance(cell, bytes) else columns.headers[0][0][0]


def write_provenance(cell: str) -> str:
    """As the name of a file, a table or a topic."""
    text = ProvenanceText(str)
    return text.decode(text.encode(Provenance("job", Term(1), Epoch(1), "in", cell, 0, 17, 0, "0"))).topic


SQL: Final = {
    bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE PRECISION", bytes: "BLOB", decimal.Decimal: "DECIMAL(40,5)",
    datetime.date: "DATE", datetime.time: "TIME(6)", datetime.datetime: "DATETIME(6)", datetime.timedelta: "TIME(6)",
}  # fmt: skip
"""Types of columns for ``DbApiSink``; of other values TEXT."""
COLUMNS: Final = {"id": "INTEGER"} | {name: SQL.get(tp, "TEXT") for name, tp in TYPES.items()}
IN_POSTGRES: Final = {column.name: column.type or "jsonb" for column in columns_of(row_of(TYPES), None)}


def in_file(form: str) -> tuple[Carrier, Refuses]:
    return by_file(form), refused_by(lambda tp: FileSink("/x", value=tp, format=form))


def in_lake(carry: Carrier) -> tuple[Carrier, Refuses]:
    return carry, refused_by(lambda tp: carry(tp, []))


def takes_all(tp: Any) -> bool:
    return False


CARRIERS: Final[Mapping[str, Mapping[str, tuple[Carrier, Refuses]]]] = {
    "JSON, JSON lines, HTTP, JSON Schema": {
        "JSON": (by_codec(JsonCodec), refused_by(JsonCodec)),
        "JSON lines": in_file("jsonl"),
        "HTTP": (by_request, refused_by(JsonCodec)),
        "JSON Schema": (by_codec(ValidatedJson), refused_by(ValidatedJson)),
    },
    "CSV": {"CSV": in_file("csv")},
    "Avro, Avro files": {"Avro": (by_codec(AvroCodec), refused_by(AvroCodec)), "Avro files": in_file("avro")},
    "Protobuf": {"Protobuf": (by_cell(write_message), lambda tp: tp not in IN_MESSAGES)},
    "Parquet": {"Parquet": in_file("parquet")},
    "PostgreSQL": {},
    "SQLite": {"SQLite": (by_sqlite(COLUMNS), takes_all)},
    "MariaDB": {},
    "Delta": {"Delta": in_lake(by_delta)},
    "Iceberg": {"Iceberg": in_lake(by_iceberg)},
    "dead letters": {"dead letters": (by_cell(write_letter), lambda tp: tp not in (str, bytes))},
    "provenance": {"provenance": (by_cell(write_provenance), lambda tp: tp is not str)},
    "state": {"state": (by_codec(state_codec), refused_by(state_codec))},
    "exchanges": {"exchanges": (by_codec(ExchangeCodec), refused_by(ExchangeCodec))},
}
"""Those of each column of the table. Servers are added by the test."""


def carriers_of(column: str, request: pytest.FixtureRequest) -> Mapping[str, tuple[Carrier, Refuses]]:
    match column:
        case "PostgreSQL":
            return {column: (by_postgres(request.getfixturevalue("database")(), IN_POSTGRES), takes_all)}
        case "MariaDB":
            if (server := os.environ.get("MARIADB_URL")) is None:
                pytest.skip("MARIADB_URL does not name a server, such as mariadb+pymysql://root@localhost/test")
            return {column: (by_table(server, COLUMNS), takes_all)}
    return CARRIERS[column]


def outcomes_of(carry: Carrier, refuses: Refuses) -> dict[str, set[str]]:
    """Return the outcomes by row of the table. All values are carried together: each is a row with one cell."""
    refused = {tp for tp in {*TYPES.values()} if refuses(tp)}
    taken = {name: tp for name, tp in TYPES.items() if tp not in refused}
    rows = dict(zip(TYPES, VALUES, strict=True))
    cells = [(name, value) for name in taken for value in VALUES[rows[name]][1]]
    tp = row_of(taken)
    back, rejected = carry(tp, [tp(id=number, **{name: value}) for number, (name, value) in enumerate(cells)])

    outcomes = {row: set[str]() if name in taken else {"refused"} for name, row in rows.items()}
    for number in rejected:
        outcomes[rows[cells[number][0]]].add("rejected")
    kept = (cell for number, cell in enumerate(cells) if number not in rejected)
    for (name, value), found in zip(kept, back, strict=True):
        outcomes[rows[name]].add(outcome(value, getattr(found, name)))
    return outcomes


def outcome(value: Any, back: Any) -> str:
    match value, back:
        case datetime.datetime(), datetime.datetime() if not same_time(value, back):
            return "the same instant" if _in_utc(back) == _in_utc(value) else f"{value!r} as {back!r}"
        case dict(), dict() if value == back:
            return "equal"
        case _ if is_same(back, value):
            return "equal"
        case decimal.Decimal(), decimal.Decimal() if back == value:
            return "the same number"
    return f"{value!r} as {back!r}"


def _in_utc(time: datetime.datetime) -> datetime.datetime:
    return time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time.astimezone(datetime.UTC)


@cache
def table() -> dict[str, dict[str, str]]:
    """Return the cells of the page by column and row."""
    lines = PAGE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| Python type | JSON"))
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in takewhile(bool, lines[first:])]
    return {column: {row[0]: row[at] for row in rows[2:]} for at, column in enumerate(rows[0]) if at}


def said_by(cell: str) -> set[str]:
    return {next(out for word, out in SAID.items() if part.startswith(word)) for part in cell.split("; ")}


def test_the_table_has_a_row_for_each_type_and_a_column_for_each_carrier() -> None:
    assert list(table()) == list(CARRIERS)
    assert {tuple(rows) for rows in table().values()} == {tuple(VALUES)}


@pytest.mark.parametrize("column", CARRIERS)
def test_a_cell_says_what_becomes_of_values(column: str, request: pytest.FixtureRequest) -> None:
    said = {row: said_by(cell) for row, cell in table()[column].items()}
    for name, (carry, refuses) in carriers_of(column, request).items():
        assert outcomes_of(carry, refuses) == said, name
