"""Who is answered by the HTTP server: names, users, proxies and certificates, over real sockets."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.http.access import HttpAccess
from kafka_eos.monitoring.http.connections import ConnectionLimits
from kafka_eos.monitoring.http.server import serve
from kafka_eos.monitoring.http.users import UserFile, build_user_line
from tests.certificates import Authority
from tests.waiting import PATIENCE


async def _say(request: Request) -> Response:
    return JSONResponse({"user": request.state.user})


ROUTES = [Route("/", _say), Route("/healthz", _say), Route("/readyz", _say)]


@contextmanager
def served(address: str = "127.0.0.1", **settings: Any) -> Iterator[int]:
    """A server with these settings; its port."""
    access = HttpAccess.of(Settings.resolve(code=settings))
    with serve((address, 0), ROUTES, "the test", access=access) as url:
        yield int(url.rpartition(":")[2])


def ask(port: int, path: str = "/", headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def login(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("address", "hosts", "asked", "status"),
    [
        ("127.0.0.1", "", "127.0.0.1:9", 200),
        ("127.0.0.1", "", "rebound.example", 421),
        ("127.0.0.1", "", "10.1.2.3", 421),
        ("127.0.0.1", "jobs.example, other", "Jobs.Example:80", 200),
        ("0.0.0.0", "", "10.1.2.3:9100", 200),
        ("0.0.0.0", "", "[fd00::1]:9100", 200),
        ("0.0.0.0", "", "localhost", 200),
        ("0.0.0.0", "", "rebound.example:9100", 421),
        ("0.0.0.0", "", "[x", 421),
        ("0.0.0.0", "", "", 421),
        ("0.0.0.0", "jobs.example", "jobs.example:9100", 200),
        ("0.0.0.0", "jobs.example", "jobs.example.evil", 421),
        ("0.0.0.0", "*", "any.example", 200),
    ],
)
def test_a_name_is_answered_if_it_is_listed_and_an_address_where_others_reach_it(
    address: str, hosts: str, asked: str, status: int
) -> None:
    with served(address, http_hosts=hosts) as port:
        assert ask(port, headers={"Host": asked})[0] == status


# ---------------------------------------------------------------- users


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text(f"# who may read\n\n{build_user_line('ada', 'päss:word')}\n{build_user_line('bob', 'x')}\n")
    return file


def test_who_logs_in_is_answered_and_nobody_else(users: Path) -> None:
    with served(http_users=users) as port:
        assert ask(port, headers=login("ada", "päss:word")) == (200, {"user": "ada"})
        assert ask(port, headers=login("ada", "päss:word")) == (200, {"user": "ada"}), "as it is remembered"
        for wrong in (
            {},
            login("ada", "x"),
            login("eve", "x"),
            login("ada", ""),
            {"Authorization": "Basic !"},
            {"Authorization": "Bearer ada"},
            {"X-Forwarded-User": "ada"},
        ):
            assert ask(port, headers=wrong) == (401, {"error": "this needs a login"})


def test_probes_need_no_login(users: Path) -> None:
    with served(http_users=users) as port:
        assert ask(port, "/healthz") == ask(port, "/readyz") == (200, {"user": ""})


def test_a_password_is_not_in_the_file(users: Path) -> None:
    assert "word" not in users.read_text() and "ada:scrypt:16384:8:1:" in users.read_text()
    assert build_user_line("ada", "x") != build_user_line("ada", "x"), "each has its own salt"


def test_a_user_who_is_removed_is_no_longer_answered_and_a_broken_file_changes_nothing(
    users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = UserFile(users)
    assert found.admits("ada", "päss:word")

    users.write_text("nonsense\n")
    assert found.admits("ada", "päss:word")
    assert f"http_users={users}, line 1: not a user" in caplog.text

    replacement = users.with_suffix(".new")
    replacement.write_text(build_user_line("bob", "y"))
    os.rename(replacement, users)
    assert not found.admits("ada", "päss:word") and not found.admits("bob", "x") and found.admits("bob", "y")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ada",
        "ada:plain:x",
        "ada:scrypt:16384:8:1:!:!",
        "ada:scrypt:3:8:1:AA==:AA==",
        "ada:scrypt:99999999999:8:1:AA==:AA==",
    ],
)
def test_a_file_without_usable_users_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(text)

    with pytest.raises(ConfigError, match="kafka-eos config user NAME"):
        UserFile(tmp_path / "users")
    with pytest.raises(ConfigError, match="cannot be read"):
        UserFile(tmp_path / "missing")


# ---------------------------------------------------------------- proxies


def test_a_header_is_believed_of_a_proxy_only() -> None:
    with served(http_user_header="X-Forwarded-User") as port:
        assert ask(port, headers={"X-Forwarded-User": "ada"}) == (200, {"user": "ada"})
        assert ask(port)[0] == 401
    with served(http_user_header="X-Forwarded-User", http_proxies="10.0.0.0/8, 192.0.2.1") as port:
        assert ask(port, headers={"X-Forwarded-User": "ada"})[0] == 401, "127.0.0.1 is none of these"
    with pytest.raises(ConfigError, match="http_proxies: .*nobody"):
        HttpAccess.of(Settings.resolve(code={"http_proxies": "nobody"}))


# ---------------------------------------------------------------- certificates


def shown(port: int, authority: Authority) -> dict[str, Any]:
    """The certificate that the server shows; it must be signed by the authority."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    connection = HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)
    try:
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return dict(secured.getpeercert() or {})


def test_a_certificate_is_renewed_while_the_server_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority, certificate, key = Authority(tmp_path), tmp_path / "server.pem", tmp_path / "server.key"

    def install(name: str) -> None:
        pair = authority.sign(name)
        for source, target in ((pair.certificate, certificate), (pair.key, key)):
            shutil.copy(source, target.with_suffix(".new"))
            os.rename(target.with_suffix(".new"), target)

    install("first")
    with served(http_certificate=certificate, http_key=key) as port:
        first = shown(port, authority)["serialNumber"]
        key.write_text("damaged")
        assert shown(port, authority)["serialNumber"] == first
        assert "The previous certificate stays in use" in caplog.text
        install("second")
        assert shown(port, authority)["serialNumber"] != first


def test_clients_that_never_end_their_handshake_keep_nobody_out(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    access = HttpAccess.of(Settings.resolve(code={"http_certificate": pair.certificate, "http_key": pair.key}))
    limits = ConnectionLimits(connections=2, request=1.0)
    with serve(("127.0.0.1", 0), ROUTES, "the test", limits=limits, access=access) as url:
        assert url.startswith("https://")
        port = int(url.rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(5)]
        try:
            shown(port, authority)
            time.sleep(1.5)
            assert all(client.recv(1) == b"" for client in idle)
        finally:
            for client in idle:
                client.close()


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("x")

    for settings in ({"http_certificate": tmp_path / "x.pem"}, {"http_certificate": tmp_path / "missing.pem"}):
        with pytest.raises(ConfigError, match="http_certificate="):
            HttpAccess.of(Settings.resolve(code=settings))
    with pytest.raises(ConfigError, match="give both, or neither"):
        HttpAccess.of(Settings.resolve(code={"http_key": tmp_path / "x.pem"}))


# ---------------------------------------------------------------- warnings


def test_an_address_that_others_reach_is_warned_of_until_it_has_a_login_and_a_certificate(
    tmp_path: Path, users: Path
) -> None:
    pair = Authority(tmp_path).sign("server")
    tls = {"http_certificate": pair.certificate, "http_key": pair.key}

    def dangers(address: str, **settings: Any) -> list[str]:
        return HttpAccess.of(Settings.resolve(code=settings)).find_dangers(address)

    assert [text.rpartition("set ")[2] for text in dangers("0.0.0.0")] == [
        "http_users or http_user_header",
        "http_certificate",
    ]
    assert len(dangers("::", http_users=users)) == len(dangers("10.1.2.3", **tls)) == 1
    assert dangers("0.0.0.0", http_users=users, **tls) == dangers("127.0.0.1") == dangers("::1") == []
