"""One bucket prefix, for commits: uploads that any process can complete, and names that are created once.

Rule: a result is either S3's response, or an OSError if the outcome is unknown. An absent name is FileNotFoundError, an
existing one FileExistsError.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from kafka_eos._util import store_urls as addresses
from kafka_eos._util.extras import ensure_extra
from kafka_eos.core.errors import ConfigError

UPLOAD_TAG: Final = "kafka-eos"
"""Metadata key that identifies the upload that created an object.

It appears with the object, and only by completing that upload.
"""
_OPTIONS: Final = ("endpoint", "region")
_ABSENT: Final = ("404", "NoSuchKey", "NoSuchUpload", "NotFound")
_THERE: Final = ("412", "PreconditionFailed")
_DENIED: Final = (401, 403)
_CLIENT: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "read_timeout": 30,
    "retries": {"mode": "standard", "max_attempts": 5},
}


class BucketAddress(Struct, frozen=True):
    """A bucket prefix as the user writes it: s3://bucket/prefix?endpoint=…&region=…."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None

    @staticmethod
    def read(given: str) -> BucketAddress:
        """Parse an address. Raise ConfigError if it is not valid, or contains a secret."""
        try:
            addresses.ensure_no_secret(given)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        parts, options = urlsplit(given), addresses.parse_options(given)
        if parts.scheme not in ("s3", "s3a"):
            raise ConfigError(
                f"{given}: files must be in a directory or in s3://bucket/prefix, not in {parts.scheme}://"
            )
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise ConfigError(f"{unknown[0]} is not an option of an address; the options are {', '.join(_OPTIONS)}")
        prefix = parts.path.strip("/")
        if not parts.netloc or not prefix:
            raise ConfigError(f"{given}: the bucket or the prefix is missing: use s3://bucket/prefix")
        return BucketAddress(parts.netloc, prefix, options.get("endpoint"), options.get("region"))

    @property
    def text(self) -> str:
        """Return the address for messages and for the scope: always the same for the same location."""
        where = urlsplit(self.endpoint or "").netloc
        return f"s3://{self.bucket}/{self.prefix}" + (f" at {where}" if where else "")


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """Explicit S3 credentials, which are never shown."""

    identity: str = field(repr=False)
    secret: str = field(repr=False)
    session: str | None = field(repr=False)


class OpenUpload(Struct, frozen=True):
    """A multipart upload that is neither completed nor aborted."""

    name: str
    id: str
    age: float


class ObjectInfo(Struct, frozen=True):
    """The size, modification time and ETag of an object."""

    size: int
    since: float
    tag: str


def _session(keys: AccessKeys | None) -> Any:
    """Return a new session, because the default one is not thread-safe. ``keys`` None: use the environment."""
    import boto3
    from botocore.session import get_session

    made = get_session()
    made.register_component("data_loader", _models())
    given = () if keys is None else (keys.identity, keys.secret, keys.session)
    return boto3.session.Session(*given, botocore_session=made)


@cache
def _models() -> Any:
    """Return the loader of S3's API model for all sessions: loading it takes longer than connecting."""
    from botocore.loaders import create_loader
    from botocore.session import get_session

    return create_loader(get_session().get_config_variable("data_path"))


class Bucket:
    """A client for one bucket prefix. Thread-safe. Names are relative to the prefix."""

    def __init__(self, address: BucketAddress, keys: AccessKeys | None = None) -> None:
        ensure_extra("s3", "files on S3")
        from botocore.config import Config

        self.address = address
        self._s3: Any = _session(keys).client(
            "s3", endpoint_url=address.endpoint, region_name=address.region, config=Config(**_CLIENT)
        )

    def begin(self, name: str, upload_tag: str) -> str:
        """Begin an upload; return its id."""
        with self._errors(name):
            made = self._s3.create_multipart_upload(**self._at(name), Metadata={UPLOAD_TAG: upload_tag})
            return str(made["UploadId"])

    def send(self, name: str, upload: str, number: int, data: bytes) -> str:
        """Send a part; return its ETag."""
        with self._errors(name):
            sent = self._s3.upload_part(**self._at(name), UploadId=upload, PartNumber=number, Body=data)
            return str(sent["ETag"])

    def list_parts(self, name: str, upload: str) -> list[tuple[str, int]]:
        """Return ETag and size of the parts of an upload. Raise FileNotFoundError if the upload does not exist any
        more."""
        found: list[tuple[str, int]] = []
        marker = 0
        while True:
            with self._errors(name):
                page = self._s3.list_parts(**self._at(name), UploadId=upload, PartNumberMarker=marker)
            found += [(str(part["ETag"]), int(part["Size"])) for part in page.get("Parts", ())]
            if not page.get("IsTruncated"):
                return found
            marker = page["NextPartNumberMarker"]

    def complete(self, name: str, upload: str, tags: Sequence[str]) -> None:
        """Complete an upload. Raise FileExistsError if the object exists, FileNotFoundError if the upload has ended."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        with self._errors(name):
            self._s3.complete_multipart_upload(
                **self._at(name), UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )

    def abort(self, name: str, upload: str) -> None:
        """Abort an upload. Raise FileNotFoundError if it has ended."""
        with self._errors(name):
            self._s3.abort_multipart_upload(**self._at(name), UploadId=upload)

    def uploads(self) -> list[OpenUpload]:
        """Return all open uploads below the prefix."""
        found: list[OpenUpload] = []
        after: dict[str, str] = {}
        now, prefix = datetime.now(UTC), f"{self.address.prefix}/"
        while True:
            with self._errors(prefix):
                page = self._s3.list_multipart_uploads(Bucket=self.address.bucket, Prefix=prefix, **after)
            found += [
                OpenUpload(
                    each["Key"].removeprefix(prefix), each["UploadId"], (now - each["Initiated"]).total_seconds()
                )
                for each in page.get("Uploads", ())
            ]
            if not page.get("IsTruncated"):
                return found
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def read_upload_tag(self, name: str) -> str | None:
        """Return the upload tag of an object; None if it does not exist."""
        try:
            with self._errors(name):
                return str(self._s3.head_object(**self._at(name))["Metadata"].get(UPLOAD_TAG, ""))
        except FileNotFoundError:
            return None

    def create(self, name: str) -> bool:
        """Create an empty object. Return False if it exists."""
        try:
            with self._errors(name):
                self._s3.put_object(**self._at(name), Body=b"", IfNoneMatch="*")
        except FileExistsError:
            return False
        return True

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        with self._errors(name):
            self._s3.put_object(**self._at(name), Body=data)

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        with self._errors(name):
            return bytes(self._s3.get_object(**self._at(name))["Body"].read())

    def fetch(self, name: str, path: Path) -> None:
        """Download an object into a file."""
        with self._errors(name), path.open("wb") as file:
            self._s3.download_fileobj(**self._at(name), Fileobj=file)

    def hidden(self) -> list[str]:
        """Return the names that begin with a dot."""
        return self.names(".")

    def names(self, begin: str) -> list[str]:
        """Return the names of objects with this beginning."""
        return [*self.listed(begin)]

    def listed(self, begin: str) -> dict[str, ObjectInfo]:
        """Return the objects whose names have this beginning."""
        prefix, found = f"{self.address.prefix}/", dict[str, ObjectInfo]()
        with self._errors(prefix):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.address.bucket, Prefix=f"{prefix}{begin}"
            )
            for page in pages:
                for each in page.get("Contents", ()):
                    listed = ObjectInfo(int(each["Size"]), each["LastModified"].timestamp(), str(each["ETag"]))
                    found[each["Key"].removeprefix(prefix)] = listed
        return found

    def head_object(self, name: str) -> ObjectInfo:
        """Return size, time and ETag of one object. Raise FileNotFoundError if it does not exist."""
        with self._errors(name):
            now = self._s3.head_object(**self._at(name))
        return ObjectInfo(int(now["ContentLength"]), now["LastModified"].timestamp(), str(now["ETag"]))

    def delete(self, name: str) -> None:
        """Delete an object. An absent one is ignored."""
        with self._errors(name):
            self._s3.delete_object(**self._at(name))

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.address.bucket, "Key": f"{self.address.prefix}/{name}"}

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

        try:
            yield
        except ClientError as error:
            code, message = str(error.response["Error"].get("Code")), str(error.response["Error"].get("Message"))
            if code == "NoSuchBucket":
                raise ConfigError(f"bucket {self.address.bucket} does not exist: create it first") from error
            if code in _ABSENT:
                raise FileNotFoundError(errno.ENOENT, message, name) from error
            if code in _THERE:
                raise FileExistsError(errno.EEXIST, message, name) from error
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            kind = PermissionError if status in _DENIED else OSError
            raise kind(errno.EACCES if kind is PermissionError else errno.EIO, f"{message} ({code})", name) from error
        except (NoCredentialsError, NoRegionError) as error:
            raise ConfigError(
                f"cannot reach {self.address.text}: {error}. Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or other credentials that boto3 finds (a profile, a role); "
                "and AWS_REGION, or ?region= in the address."
            ) from error
        except BotoCoreError as error:
            raise OSError(errno.EIO, str(error), name) from error
