"""One prefix of a bucket, as commits need it: uploads that anybody can complete, and names that are made once.

Rule: an answer is either what S3 has said, or an OSError that says that nobody knows. Not found is FileNotFoundError,
and a name that is there already FileExistsError.
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

from kafka_eos._util import store_urls as addresses
from kafka_eos._util.extras import expect_extra
from kafka_eos.core.errors import ConfigError

MARK: Final = "kafka-eos"
"""Metadata of an object: which upload it was. It appears with the object, and only by completing that upload."""
_OPTIONS: Final = ("endpoint", "region")
_ABSENT: Final = ("404", "NoSuchKey", "NoSuchUpload", "NotFound")
_THERE: Final = ("412", "PreconditionFailed")
_DENIED: Final = (401, 403)
_CLIENT: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "read_timeout": 30,
    "retries": {"mode": "standard", "max_attempts": 5},
}


@dataclass(frozen=True, slots=True)
class Address:
    """``s3://bucket/prefix?endpoint=…&region=…``."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None

    @staticmethod
    def read(given: str) -> Address:
        """ConfigError if it is none, or has a secret in it."""
        try:
            addresses.expect_no_secret(given)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        parts, options = urlsplit(given), addresses.options(given)
        if parts.scheme not in ("s3", "s3a"):
            raise ConfigError(f"{given}: files lie in directories and in s3://bucket/prefix, not in {parts.scheme}://")
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise ConfigError(f"{unknown[0]} is no option of an address; there are {', '.join(_OPTIONS)}")
        prefix = parts.path.strip("/")
        if not parts.netloc or not prefix:
            raise ConfigError(f"{given}: give a bucket and a prefix, s3://bucket/prefix")
        return Address(parts.netloc, prefix, options.get("endpoint"), options.get("region"))

    @property
    def text(self) -> str:
        """For people, and the scope: the same as long as it is the same place."""
        where = urlsplit(self.endpoint or "").netloc
        return f"s3://{self.bucket}/{self.prefix}" + (f" at {where}" if where else "")


@dataclass(frozen=True, slots=True)
class Keys:
    """Who asks, where it is not left to boto3 to find that out. Shown nowhere."""

    identity: str = field(repr=False)
    secret: str = field(repr=False)
    session: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that has not ended."""

    name: str
    id: str
    age: float


@dataclass(frozen=True, slots=True)
class Listed:
    """An object: its bytes, when it came, in seconds since 1970, and the store's tag of what is in it."""

    size: int
    since: float
    tag: str


def _session(keys: Keys | None) -> Any:
    """A session of its own: the default one is no affair of threads. ``keys`` None: those of the environment."""
    import boto3
    from botocore.session import get_session

    made = get_session()
    made.register_component("data_loader", _models())
    given = () if keys is None else (keys.identity, keys.secret, keys.session)
    return boto3.session.Session(*given, botocore_session=made)


@cache
def _models() -> Any:
    """What S3 can be asked, for all sessions: to read it from its files takes longer than to connect."""
    from botocore.loaders import create_loader
    from botocore.session import get_session

    return create_loader(get_session().get_config_variable("data_path"))


class Bucket:
    """May be used from threads. Names are below the prefix."""

    def __init__(self, address: Address, keys: Keys | None = None) -> None:
        expect_extra("s3", "files on S3")
        from botocore.config import Config

        self.address = address
        self._s3: Any = _session(keys).client(
            "s3", endpoint_url=address.endpoint, region_name=address.region, config=Config(**_CLIENT)
        )

    def begin(self, name: str, mark: str) -> str:
        """Begin an upload; its id."""
        with self._errors(name):
            made = self._s3.create_multipart_upload(**self._at(name), Metadata={MARK: mark})
            return str(made["UploadId"])

    def send(self, name: str, upload: str, number: int, data: bytes) -> str:
        """Send a part; its tag."""
        with self._errors(name):
            sent = self._s3.upload_part(**self._at(name), UploadId=upload, PartNumber=number, Body=data)
            return str(sent["ETag"])

    def sent(self, name: str, upload: str) -> list[tuple[str, int]]:
        """Tag and size of each part. FileNotFoundError if the upload has ended, or never was."""
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
        """Make it an object. FileExistsError if there is one, FileNotFoundError if the upload has ended."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        with self._errors(name):
            self._s3.complete_multipart_upload(
                **self._at(name), UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )

    def abort(self, name: str, upload: str) -> None:
        """FileNotFoundError if the upload has ended."""
        with self._errors(name):
            self._s3.abort_multipart_upload(**self._at(name), UploadId=upload)

    def uploads(self) -> list[Upload]:
        """All that have not ended, below the prefix."""
        found: list[Upload] = []
        after: dict[str, str] = {}
        now, prefix = datetime.now(UTC), f"{self.address.prefix}/"
        while True:
            with self._errors(prefix):
                page = self._s3.list_multipart_uploads(Bucket=self.address.bucket, Prefix=prefix, **after)
            found += [
                Upload(each["Key"].removeprefix(prefix), each["UploadId"], (now - each["Initiated"]).total_seconds())
                for each in page.get("Uploads", ())
            ]
            if not page.get("IsTruncated"):
                return found
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def mark(self, name: str) -> str | None:
        """Of an object: which upload it was, "" if it was none of ours. None if there is no object."""
        try:
            with self._errors(name):
                return str(self._s3.head_object(**self._at(name))["Metadata"].get(MARK, ""))
        except FileNotFoundError:
            return None

    def create(self, name: str) -> bool:
        """An empty object. False if there is one."""
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
        """All of an object."""
        with self._errors(name):
            return bytes(self._s3.get_object(**self._at(name))["Body"].read())

    def fetch(self, name: str, path: Path) -> None:
        """An object, into a file."""
        with self._errors(name), path.open("wb") as file:
            self._s3.download_fileobj(**self._at(name), Fileobj=file)

    def hidden(self) -> list[str]:
        """Names that begin with a dot."""
        return self.names(".")

    def names(self, begin: str) -> list[str]:
        """Of objects: those that begin so."""
        return [*self.listed(begin)]

    def listed(self, begin: str) -> dict[str, Listed]:
        """Objects whose names begin so."""
        prefix, found = f"{self.address.prefix}/", dict[str, Listed]()
        with self._errors(prefix):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.address.bucket, Prefix=f"{prefix}{begin}"
            )
            for page in pages:
                for each in page.get("Contents", ()):
                    listed = Listed(int(each["Size"]), each["LastModified"].timestamp(), str(each["ETag"]))
                    found[each["Key"].removeprefix(prefix)] = listed
        return found

    def told(self, name: str) -> Listed:
        """Of one object. FileNotFoundError if it is not there."""
        with self._errors(name):
            now = self._s3.head_object(**self._at(name))
        return Listed(int(now["ContentLength"]), now["LastModified"].timestamp(), str(now["ETag"]))

    def delete(self, name: str) -> None:
        """One that is not there is fine."""
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
            code, said = str(error.response["Error"].get("Code")), str(error.response["Error"].get("Message"))
            if code == "NoSuchBucket":
                raise ConfigError(f"there is no bucket {self.address.bucket}: make it first") from error
            if code in _ABSENT:
                raise FileNotFoundError(errno.ENOENT, said, name) from error
            if code in _THERE:
                raise FileExistsError(errno.EEXIST, said, name) from error
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            kind = PermissionError if status in _DENIED else OSError
            raise kind(errno.EACCES if kind is PermissionError else errno.EIO, f"{said} ({code})", name) from error
        except (NoCredentialsError, NoRegionError) as error:
            raise ConfigError(
                f"cannot reach {self.address.text}: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or whatever else boto3 looks for (a profile, a role); and AWS_REGION, or ?region= in the address."
            ) from error
        except BotoCoreError as error:
            raise OSError(errno.EIO, str(error), name) from error
