"""A job with exactly the permissions of docs/permissions.md in Kafka, PostgreSQL and S3 is killed and recovers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import psycopg
import pytest

from tests.chaos import harness
from tests.chaos.harness import expected
from tests.chaos.running import make_job, refused
from tests.contract import s3_server
from tests.kafka_rights import PAGE, Rights, documented
from tests.secured import LIMITED, PASSWORD, Secured

pytestmark = pytest.mark.xdist_group("secured")

TABLES = (
    "CREATE TABLE totals (account text, total bigint, id bigint); CREATE TABLE newest (LIKE totals, UNIQUE (account))"
)
LAKE = "lake"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def rights(secured: Secured) -> Iterator[Rights]:
    found = Rights(secured.open)
    yield found
    found.take_all()


@pytest.fixture
def granted(database: Callable[[], str]) -> Iterator[tuple[str, str]]:
    """The address of a new database for a role with the grants of the page, and that of its owner."""
    owner, role = database(), f"order_totals_{uuid4().hex[:8]}"
    (grants,) = blocks("sql")
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        connection.execute(grants.replace("order_totals", role).encode())
    yield owner.replace("user=postgres", f"user={role}"), owner
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


class Buckets:
    """Those of the page, on a server where a user has the policies of the page."""

    def __init__(self, server: s3_server.Server) -> None:
        self._at = f"http://127.0.0.1:{server.port}"
        server.add_user(LIMITED, PASSWORD)
        root = {f"{name.lower()}": value for name, value in s3_server.CREDENTIALS.items()}
        self.client = boto3.client("s3", endpoint_url=self._at, region_name="us-east-1", **root)
        self.client.create_bucket(Bucket=LAKE)
        for policy in map(json.loads, blocks("json")):
            for statement in policy["Statement"]:
                statement["Principal"] = {"AWS": [LIMITED]}
            (bucket,) = {each["Resource"].split(":::")[1].split("/")[0] for each in policy["Statement"]}
            self.client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))

    def address(self, place: str) -> str:
        return f"s3://{place}?endpoint={self._at}&region=us-east-1"

    def names(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def lines(self, bucket: str) -> list[Any]:
        names = [name for name in self.names(bucket) if name.endswith(".jsonl")]
        bodies = (self.client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names)
        return [json.loads(line) for body in bodies for line in body.splitlines()]


@pytest.fixture
def buckets(tmp_path: Path) -> Iterator[Buckets]:
    if s3_server.binary() is None:
        pytest.skip(s3_server.MISSING)
    (tmp_path / "users").mkdir()
    server = s3_server.Server(tmp_path / "s3", tmp_path / "users")
    try:
        yield Buckets(server)
    finally:
        server.kill()


@pytest.mark.campaign
@pytest.mark.chaos
def test_a_job_with_exactly_the_permissions_of_the_page_is_killed_in_a_commit_and_recovers(
    secured: Secured, rights: Rights, granted: tuple[str, str], buckets: Buckets, tmp_path: Path
) -> None:
    as_role, as_owner = granted
    secured.password(LIMITED, PASSWORD)
    login = secured.config("SASL", sasl_mechanism="SCRAM-SHA-512", sasl_username=LIMITED, sasl_password=PASSWORD)
    job = make_job(
        secured.open, tmp_path, 300, "permissions.py", KAFKA_EOS_BOOTSTRAP_SERVERS=secured.addresses["SASL"],
        KAFKA_EOS_KAFKA_CONFIG=json.dumps(login), KAFKA_EOS_STATE_DIR=tmp_path / "state", TEST_DATABASE=as_role,
        TEST_CHECKPOINTS=buckets.address("checkpoints/jobs"), TEST_FILES=buckets.address(f"{LAKE}/totals"),
        AWS_ACCESS_KEY_ID=LIMITED, AWS_SECRET_ACCESS_KEY=PASSWORD,
    )  # fmt: skip
    rights.give(documented(job))

    job.run("sink.prepare.after=kill;commit.between=kill;recovery.committed=kill")

    wanted = sorted(expected(harness.read(job.bootstrap, job.input)))
    assert sorted(told(json.loads(each.value())) for each in harness.read(job.bootstrap, job.output)) == wanted
    assert sorted(map(told, buckets.lines(LAKE))) == wanted
    assert rows(as_owner, "totals") == wanted
    newest = {account: (account, total, number) for account, total, number in sorted(wanted, key=lambda row: row[2])}
    assert rows(as_owner, "newest") == sorted(newest.values())
    assert harness.open_transactions(job) == []
    assert all(name.startswith("jobs/") for name in buckets.names("checkpoints"))

    job.environment["TEST_CHECKPOINTS"] = buckets.address("checkpoints/others")  # beside the prefix of the policy
    assert "no right to write checkpoints" in refused(job, 2)


def told(row: Any) -> tuple[str, int, int]:
    return row["account"], row["total"], row["id"]


def rows(conninfo: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo) as connection:
        return sorted(connection.execute(f"SELECT account, total, id FROM {table}".encode()).fetchall())
