"""An object store (S3 and compatible stores, Google Cloud Storage, Azure) as a ``remote_storage.BlobStore``.

Names are created with a conditional put (``If-None-Match: *`` or the store's equivalent). pyarrow's own S3 client has
no conditional put and silently replaces objects. Rule: this is the only module that imports obstore; obstore's errors
are translated here.
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
"""Most parts of an upload that are in memory at once."""
RETRY_SECONDS = 30.0
_CREATES = 5
_PUBLISHER = "publisher"
_MACHINE = "http://169.254.169.254/"
"""The metadata service that gives cloud machines the credentials of their role."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


def connect(uri: str, retry_seconds: float = RETRY_SECONDS) -> ObjectStore:
    """Return the store at ``scheme://bucket/prefix?key=value…``; the keys are options of the store, such as ``region``.

    Credentials come from the environment or from the machine's role, never from the address. Makes no request; a later
    request that fails is retried for ``retry_seconds``.
    Raises ConfigError if the address is wrong or the client library is not installed.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(f"checkpoints in {uri} need obstore: pip install 'kafka-eos[object-store]'") from error
    parts = urlsplit(uri)
    options = addresses.parse_options(uri)
    plain = _plain_http(options)
    try:
        # obstore's types distinguish the options of each store; these options come from the user's address.
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
    """One prefix of a bucket. Thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, name: str, data: bytes) -> None:
        """Create as ``BlobStore`` does. Each call signs its object, so that it recognizes it after a lost response."""
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
            # Rejected because of a concurrent write that then failed: try again.
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

    def read_part(self, name: str, start: int, size: int) -> bytes:
        import obstore

        with _own_errors(name):
            return bytes(obstore.get_range(self._client, name, start=start, length=size))

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
        """Delete as ``BlobStore`` does; S3 takes a thousand names per request. Other stores stop at an absent name."""
        import obstore

        try:
            with _own_errors(", ".join(names[:3])):
                obstore.delete(self._client, list(names))
        except FileNotFoundError:
            if len(names) > 1:  # the absent name does not show whether the others were deleted
                for name in names:
                    self.delete([name])

    def remove_debris(self) -> None:
        """Do nothing: the bucket's lifecycle rule removes parts of unfinished uploads; see docs/storage.md."""

    def _put_new(self, name: str, data: bytes, publisher: str) -> None:
        import obstore

        with _own_errors(name):
            obstore.put(
                self._client, name, data, mode="create", use_multipart=False, attributes={_PUBLISHER: publisher}
            )

    def _publisher(self, name: str) -> str | None:
        """Return the signature in an object: "" if another program created it, None if it does not exist."""
        import obstore

        try:
            with _own_errors(name):
                return str(obstore.get(self._client, name).attributes.get(_PUBLISHER, ""))
        except FileNotFoundError:
            return None


@contextmanager
def _own_errors(name: str) -> Iterator[None]:
    from obstore import exceptions as obstore_errors

    try:
        yield
    except FileNotFoundError as error:
        if error.errno is not None:
            raise  # raised by a local file that is read here
        if any(text in str(error) for text in _NO_BUCKET):
            raise ConfigError(f"the bucket of checkpoint_dir does not exist: {_first_line(error)}") from error
        raise FileNotFoundError(errno.ENOENT, "no such object", name) from error
    except obstore_errors.AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, "exists", name) from error
    except (obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, _first_line(error), name) from error
    except obstore_errors.BaseError as error:
        raise OSError(errno.EIO, f"{_first_line(error)}{_no_login(error)}", name) from error


def _no_login(error: BaseException) -> str:
    """Return a hint if the client had no credentials and asked the machine for its role; otherwise ""."""
    if _MACHINE not in str(error):
        return ""
    return (
        ". The environment contains no credentials for the store (AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY), and the machine's role provides none"
    )


def _plain_http(options: Mapping[str, str]) -> bool:
    """Return whether the user named an endpoint without TLS."""
    given = [value for key, value in options.items() if key.lower().endswith(("endpoint", "endpoint_url"))]
    given += [os.environ.get("AWS_ENDPOINT_URL_S3", ""), os.environ.get("AWS_ENDPOINT_URL", "")]
    return any(value.startswith("http://") for value in given)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
