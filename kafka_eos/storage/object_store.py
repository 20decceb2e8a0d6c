"""An object store (S3 and what speaks its protocol, Google Cloud Storage, Azure) as a ``remote.Store``.

Names are created with a conditional put (``If-None-Match: *`` or the store's like). pyarrow's own S3 client has none:
it replaces without a word. Rule: the only module that imports obstore; its errors end here.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from kafka_eos._util import store_urls as addresses
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")

_PARTS = 3
"""Parts of an upload that are in memory at most."""
RETRY_SECONDS = 30.0
_CREATES = 5
_PUBLISHER = "publisher"
_MACHINE = "http://169.254.169.254/"
"""Where machines of clouds tell which role they have."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


def connect(uri: str, retry_seconds: float = RETRY_SECONDS) -> ObjectStore:
    """The store at ``scheme://bucket/prefix?key=value…``; the keys are options of the store, such as ``region``.

    Credentials come from the environment or from the machine's role, never from the address. Makes no request;
    a later one that fails is repeated for ``retry_seconds``.
    ConfigError if the address is wrong or the client library is not installed.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(f"checkpoints in {uri} need obstore: pip install 'kafka-eos[object-store]'") from error
    parts = urlsplit(uri)
    options = addresses.options(uri)
    plain = _plain_http(options)
    try:
        # obstore's own types tell the options of each store apart; these come from the user's address.
        client: Any = from_url(
            urlunsplit(parts._replace(query="")),
            config=options,  # type: ignore[call-overload]
            client_options={"timeout": "20s", "connect_timeout": "5s", "allow_http": plain},
            retry_config={"max_retries": 8, "retry_timeout": timedelta(seconds=retry_seconds)},
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"checkpoint_dir {uri}: {_first_line(error)}") from error
    return ObjectStore(client)


class ObjectStore:
    """One prefix of a bucket. May be used from threads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, name: str, data: bytes) -> None:
        """As ``Store``. Each call signs what it writes, so it knows its own work when an answer was lost."""
        publisher = secrets.token_hex(16)
        failure: OSError | None = None
        for _ in range(_CREATES):
            try:
                return self._put_new(name, data, publisher)
            except OSError as error:
                failure = error
            found = self._publisher(name)
            if found == publisher:
                return None
            if found is not None:
                raise FileExistsError(errno.EEXIST, "exists", name) from failure
            if not isinstance(failure, FileExistsError):
                raise failure
            # Refused because of a write at the same moment, which then did not come to pass: try again.
        reason = _first_line(failure.__cause__ or failure) if failure else ""
        raise OSError(errno.EIO, f"refused as existing, which it is not: {reason}", name) from failure

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        import obstore

        with _own_errors(name):
            part = LIMITS.upload_part_bytes
            if size <= part:
                obstore.put(self._client, name, b"".join(chunks), use_multipart=False)
            else:
                obstore.put(self._client, name, iter(chunks), chunk_size=part, max_concurrency=_PARTS)

    def read(self, name: str) -> Iterator[bytes]:
        import obstore

        with _own_errors(name):
            for chunk in obstore.get(self._client, name).stream(min_chunk_size=LIMITS.copied_bytes):
                yield bytes(chunk)

    def size(self, name: str) -> int | None:
        import obstore

        try:
            with _own_errors(name):
                return int(obstore.head(self._client, name)["size"])
        except FileNotFoundError:
            return None

    def list(self, directory: str) -> Sequence[str]:
        import obstore

        with _own_errors(directory):
            found = obstore.list_with_delimiter(self._client, directory)
            return [entry["path"].rpartition("/")[2] for entry in found["objects"]]

    def directories(self) -> Sequence[str]:
        import obstore

        with _own_errors("/"):
            found = obstore.list_with_delimiter(self._client)
            return [prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]]

    def delete(self, names: Sequence[str]) -> None:
        """As ``Store``; S3 takes a thousand names in one request. Other stores stop at a name that is absent."""
        import obstore

        try:
            with _own_errors(", ".join(names[:3])):
                obstore.delete(self._client, list(names))
        except FileNotFoundError:
            if len(names) > 1:  # which of them it was does not say whether the others went
                for name in names:
                    self.delete([name])

    def sweep(self) -> None:
        """Nothing to do: parts of unfinished uploads are the bucket's lifecycle rule's; see docs/storage.md."""

    def _put_new(self, name: str, data: bytes, publisher: str) -> None:
        import obstore

        with _own_errors(name):
            obstore.put(
                self._client, name, data, mode="create", use_multipart=False, attributes={_PUBLISHER: publisher}
            )

    def _publisher(self, name: str) -> str | None:
        """Who created an object: "" if somebody else's program did; None if it does not exist."""
        import obstore

        try:
            with _own_errors(name):
                return str(obstore.get(self._client, name).attributes.get(_PUBLISHER, ""))
        except FileNotFoundError:
            return None


@contextmanager
def _own_errors(name: str) -> Iterator[None]:
    from obstore import exceptions as theirs

    try:
        yield
    except FileNotFoundError as error:
        if error.errno is not None:
            raise  # of a local file that is read here
        if any(mark in str(error) for mark in _NO_BUCKET):
            raise ConfigError(f"the bucket of checkpoint_dir does not exist: {_first_line(error)}") from error
        raise FileNotFoundError(errno.ENOENT, "no such object", name) from error
    except theirs.AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, "exists", name) from error
    except (theirs.PermissionDeniedError, theirs.UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, _first_line(error), name) from error
    except theirs.BaseError as error:
        raise OSError(errno.EIO, f"{_first_line(error)}{_no_login(error)}", name) from error


def _no_login(error: BaseException) -> str:
    """What to say if the client asked the machine for a role, since it was given no credentials."""
    if _MACHINE not in str(error):
        return ""
    return (
        ". There are no credentials for the store in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), so "
        "this machine was asked for its role, and has given none"
    )


def _plain_http(options: Mapping[str, str]) -> bool:
    """Whether the user named an endpoint without TLS."""
    given = [value for key, value in options.items() if key.lower().endswith(("endpoint", "endpoint_url"))]
    given += [os.environ.get("AWS_ENDPOINT_URL_S3", ""), os.environ.get("AWS_ENDPOINT_URL", "")]
    return any(value.startswith("http://") for value in given)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
