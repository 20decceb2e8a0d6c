"""Downloads files from the repository that Maven uses on this machine.

Rule: a file appears under its name only when its SHA-256 is the pinned one. A partial download is kept beside it, and
the next one resumes there.

The repository is the first of
    KAFKA_EOS_MAVEN_REPOSITORY    the URL of a repository in Maven's layout, or its directory
    ~/.m2/settings.xml            a mirror of everything (``mirrorOf`` is ``*``, ``external:*`` or names ``central``)
    Maven Central, at the address that an installed client has for it: Maven itself, or the Ivy inside pyspark
Proxies and certificates are those of the environment (HTTPS_PROXY, SSL_CERT_FILE).
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import importlib.util
import os
import re
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from msgspec import Struct

from kafka_eos.core.errors import ConfigError

VARIABLE: Final = "KAFKA_EOS_MAVEN_REPOSITORY"
_CENTRAL: Final = re.compile(rb"https://[a-z0-9.-]+/maven2")
_SUPER_POM: Final = "org/apache/maven/model/pom-4.0.0.xml"
_RESOLVER: Final = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"
_ATTEMPTS: Final = 4
_TIMEOUT: Final = 30.0
_BLOCK: Final = 1 << 16


class Artifact(Struct, frozen=True):
    """A file by its Maven coordinates, with its pinned SHA-256 (hex)."""

    group: str
    name: str
    version: str
    digest: str
    ending: str = ".jar"
    """The file name's part after the version."""

    @classmethod
    def parse(cls, coordinates: str, digest: str) -> Artifact:
        """Parse ``group:name:version``, a jar, or ``group:name:version:classifier:extension``."""
        group, name, version, *other = coordinates.split(":")
        if not other:
            return cls(group, name, version, digest)
        classifier, extension = other
        return cls(group, name, version, digest, f"-{classifier}.{extension}")

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}{self.ending}"

    @property
    def path(self) -> str:
        """Return the path of the file in a repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file}"


class RepositoryUnreachable(Exception):
    """The repository did not deliver the file."""


def repository() -> str:
    """Return the URL or directory of the repository, without a slash at the end.

    Raises ConfigError if none is configured.
    """
    found = os.environ.get(VARIABLE) or _mirror(Path.home() / ".m2" / "settings.xml") or _central()
    if not found:
        raise ConfigError(
            f"no Maven repository is configured. Set {VARIABLE} to the URL of Maven Central, or "
            "of a mirror. Or install Maven, or run pip install 'kafka-eos[spark]', whose default "
            "repository is then used"
        )
    return found.rstrip("/")


def redact_login(url: str) -> str:
    """Return the URL without its login."""
    return re.sub(r"//[^/@]*@", "//", url)


def is_intact(path: Path, artifact: Artifact) -> bool:
    """Return whether the file exists and matches the pinned checksum."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == artifact.digest


def fetch(home: str, artifact: Artifact, directory: Path) -> None:
    """Download the artifact into ``directory`` unless it exists there.

    Raises RepositoryUnreachable, or ConfigError if its checksum differs.
    """
    target = directory / artifact.file
    if is_intact(target, artifact):
        return
    target.unlink(missing_ok=True)
    partial = target.with_name(f"{artifact.file}.part")
    for attempt in range(_ATTEMPTS):
        try:
            _download(home, artifact, partial)
            break
        except (OSError, http.client.HTTPException) as error:
            if attempt == _ATTEMPTS - 1 or _is_final(error):
                raise RepositoryUnreachable(f"{redact_login(home)}/{artifact.path}: {error}") from error
    if not is_intact(partial, artifact):
        partial.unlink()  # the partial file is unusable
        raise ConfigError(
            f"{artifact.file} of {redact_login(home)} is not the pinned file (SHA-256 differs): "
            "this version of kafka-eos needs another one. If a mirror or proxy responded, "
            f"correct its copy, or name another repository: {VARIABLE}"
        )
    partial.rename(target)


def _download(home: str, artifact: Artifact, partial: Path) -> None:
    if not urlsplit(home).scheme:
        shutil.copyfile(Path(home) / artifact.path, partial)
        return
    request = _request(f"{home}/{artifact.path}", partial.stat().st_size if partial.exists() else 0)
    try:
        with _OPENER.open(request, timeout=_TIMEOUT) as answer:
            mode = "ab" if answer.status == http.HTTPStatus.PARTIAL_CONTENT else "wb"
            with partial.open(mode) as file:
                _copy(answer, file)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # it is complete already: the checksum decides
        raise


def _request(url: str, have: int) -> urllib.request.Request:
    """Build the request for what follows the first ``have`` bytes, with the login from the address, if any."""
    request = urllib.request.Request(redact_login(url), headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - the user's repository; sums are pinned
    parts = urlsplit(url)
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    return request


class _LoginForOneServer(urllib.request.HTTPRedirectHandler):
    """Follows redirects. The login is sent to the server that the user named, and to no other."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:  # scheme, host and port
            followed.remove_header("Authorization")
        return followed


_OPENER: Final = urllib.request.build_opener(_LoginForOneServer)


def _copy(answer: http.client.HTTPResponse, file: IO[bytes]) -> None:
    """Copy the response to the file.

    Raises IncompleteRead if it ends early: ``read`` with a size does not report that.
    """
    missing = answer.length
    while block := answer.read(_BLOCK):
        file.write(block)
        missing = None if missing is None else missing - len(block)
    if missing:
        raise http.client.IncompleteRead(b"", missing)


def _is_final(error: Exception) -> bool:
    """Return whether a retry would fail in the same way."""
    refused = isinstance(error, urllib.error.HTTPError) and error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
    return refused or isinstance(error, FileNotFoundError)


def _central() -> str | None:
    """Return the address of Maven Central in an installed client; None if there is none."""
    for jar, member in _clients():
        with zipfile.ZipFile(jar) as archive:
            if found := _CENTRAL.search(archive.read(member)):
                return found[0].decode()
    return None


def _clients() -> Iterator[tuple[Path, str]]:
    """Yield jars of clients on this machine, and the file in each that holds its default repository."""
    if maven := shutil.which("mvn"):
        home = Path(maven).resolve().parent.parent
        yield from ((jar, _SUPER_POM) for jar in sorted(home.glob("lib/maven-model-builder-*.jar")))
    if (spark := importlib.util.find_spec("pyspark")) is not None:
        for place in spark.submodule_search_locations or ():
            yield from ((jar, _RESOLVER) for jar in sorted(Path(place).glob("jars/ivy-*.jar")))


def _mirror(settings: Path) -> str | None:
    """Return the mirror of Central in this user's Maven settings. Raises ConfigError if they cannot be read."""
    if not settings.is_file():
        return None
    try:
        tree = ElementTree.parse(settings)  # noqa: S314 - the user's own file
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError(f"{settings} cannot be read: {error}. Repair it, or name a repository: {VARIABLE}") from None
    for mirror in tree.iterfind(".//{*}mirror"):
        wanted, url = mirror.findtext("{*}mirrorOf", ""), mirror.findtext("{*}url")
        if url and {part.strip() for part in re.split(",", wanted)} & {"*", "external:*", "central"}:
            return url.strip()
    return None
