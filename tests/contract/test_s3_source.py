"""FileSource on a real S3 server: the contract of every source, partitions, kills, and objects that change."""

from __future__ import annotations

import gzip
import re
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
import s3_server
from test_file_source import run_app

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors.files import FileSource
from kafka_eos.core.errors import EnvironmentFailed, InputLost, Retryable
from kafka_eos.core.ids import Term
from kafka_eos.testing import SourceUnderTest, check_source
from tests.marks import campaign

CTX = JobContext("job", Term(1), {})


class Order(msgspec.Struct, frozen=True):
    id: int
    day: str = ""


class Store:
    """What is below one prefix of the server's bucket."""

    def __init__(self, port: int) -> None:
        self.prefix = f"test-{secrets.token_hex(6)}"
        self.address = s3_server.address(port, self.prefix)
        self._client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")

    def put(self, name: str, ids: Sequence[int]) -> None:
        self.put_rows(name, [{"id": n} for n in ids])

    def put_rows(self, name: str, rows: Sequence[Any]) -> None:
        data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        body = gzip.compress(data) if name.endswith(".gz") else data
        self._client.put_object(Bucket=s3_server.BUCKET, Key=f"{self.prefix}/{name}", Body=body)

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=s3_server.BUCKET, Key=f"{self.prefix}/{name}")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server.reachable(tmp_path_factory.mktemp("s3")) as found:
        yield found


def opened(source: FileSource[Any], positions: Any = None) -> Any:
    at = source.discover(CTX, None) if positions is None else positions
    return source.reader(TaskContext(CTX, 0, 1, "objects", Services()), at)


def test_objects_keep_the_contract(port: int) -> None:
    """Of a prefix alone and in partitions; what is hidden, or deeper, is passed over."""

    def fresh() -> SourceUnderTest:
        store = Store(port)
        for name, ids in {"a.jsonl": [0, 1, 2], "b.jsonl.gz": [3, 4], "_temporary/c.jsonl": [5], "d/e.jsonl": [6],
                          ".f.jsonl": [7], "g.txt": [8]}.items():  # fmt: skip
            store.put(name, ids)

        def grow() -> Sequence[Order]:
            store.put("0.jsonl", [9])
            return [Order(9)]

        rows = [Order(n) for n in range(5)]
        source = lambda: FileSource(store.address, value=Order)  # noqa: E731
        return SourceUnderTest(source, rows, append=grow, expire=lambda: store.delete("b.jsonl.gz"))

    def parts() -> SourceUnderTest:
        store = Store(port)
        store.put("day=2026-01-01/a.jsonl", [0, 1])
        store.put("day=2026-01-02/a.jsonl", [2, 3])
        rows = [Order(n, f"2026-01-0{day}") for n, day in enumerate([1, 1, 2, 2])]
        source = lambda: FileSource(store.address, value=Order, partitions=("day",))  # noqa: E731
        return SourceUnderTest(source, rows)

    check_source(fresh)
    check_source(parts, "reads-all", "replays")


def test_an_object_that_is_another_one_now_is_refused(port: int) -> None:
    """Of the same size, within the same second: the tag of the store tells."""
    store = Store(port)
    store.put("a.jsonl", [1, 2])
    source = FileSource(store.address, value=Order)
    reader = opened(source)
    assert reader.poll(1, 0).values == [Order(1)]
    store.put("a.jsonl", [3, 4])

    assert reader.poll(1, 0).values == [Order(2)], "of the object that it has fetched"
    with pytest.raises(InputLost, match=r"a\.jsonl has changed since it was found"):
        reader.poll(1, 0)
    with pytest.raises(InputLost, match=r"a\.jsonl has changed since it was found"):
        source.discover(CTX, reader.positions())


def test_a_store_that_is_away_is_waited_for(port: int) -> None:
    store = Store(port)
    store.put("a.jsonl", [1])
    source = FileSource(store.address, value=Order)
    positions = source.discover(CTX, None)
    away: FileSource[Order] = FileSource(store.address.replace(str(port), "1"), value=Order)

    with pytest.raises(Retryable, match="could not list s3://"):
        away.discover(CTX, positions)
    with pytest.raises(EnvironmentFailed, match="could not open s3://"):
        opened(away, positions).poll(1, 0)


@pytest.mark.parametrize("place", ["bucket", campaign("directory")])
def test_partitions_are_read_once_also_when_worker_and_supervisor_die(place: str, port: int, tmp_path: Path) -> None:
    """The last program of docs/files.md as it is, but for its places; a partition comes between two runs."""
    store, directory = Store(port), tmp_path / "in"
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf-8")
    (shown,) = (code for code in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "Visit" in code)
    where = store.address if place == "bucket" else str(directory)
    shown = shown.replace("s3://lake/visits?region=eu-central-1", where).replace("/data/visits", str(tmp_path / "out"))
    (tmp_path / "app.py").write_text(shown)
    days = [[{"user": f"u{n % 7}", "pages": n % 3} for n in range(60 * day, 60 * day + 60)] for day in range(4)]

    def put(day: int) -> None:
        name = f"day=2026-01-0{day + 1}/part-1.jsonl"
        if place == "bucket":
            store.put_rows(name, days[day])
        else:
            (directory / name).parent.mkdir(parents=True)
            (directory / name).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in days[day]))

    few = {"KAFKA_EOS_BATCH_SIZE": "20", "KAFKA_EOS_PARALLELISM": "2"}
    for day in range(3):
        put(day)
    run_app(tmp_path, "worker.ack.before=kill;commit.before=kill", -signal.SIGKILL, **few)
    put(3)
    run_app(tmp_path, "worker.ack.before=kill", **few)

    out = [msgspec.json.decode(line) for p in (tmp_path / "out").glob("part-*") for line in p.read_bytes().splitlines()]
    wanted = [{**row, "day": f"2026-01-0{n + 1}"} for n, day in enumerate(days) for row in day if row["pages"] > 1]
    assert sorted(map(str, out)) == sorted(map(str, wanted))
