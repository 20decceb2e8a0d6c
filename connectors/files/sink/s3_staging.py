"""Staged files as multipart uploads: parts are sent while rows are written, the rest before the epoch is prepared.

Rule: a prepared upload has no data on this machine, and discarding an upload does not abort it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Final

from kafka_eos.connectors.files.file_names import PartId
from kafka_eos.connectors.files.s3.bucket import Bucket
from kafka_eos.connectors.files.sink.s3_names import UploadCommittable, name_of
from kafka_eos.core.errors import ConfigError, Fenced
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS

_MOST: Final = 10_000


class UploadFile:
    """A staged file that is written to one upload."""

    def __init__(self, bucket: Bucket, part: PartId, name: str, announced: bool) -> None:
        self._bucket = bucket
        self._part = part
        self.name = name
        self._announced = announced
        self._upload_tag = uuid.uuid4().hex
        self._upload = bucket.begin(name, self._upload_tag)
        self._waiting, self._tags = bytearray(), list[str]()
        self._gone = False
        self.size = 0

    def write(self, data: bytes, /) -> int:
        if not self._gone:  # a library may still write a footer after ``discard``
            self._waiting += data
            self.size += len(data)
            while len(self._waiting) >= LIMITS.upload_part_bytes:
                self._send(LIMITS.upload_part_bytes)
        return len(data)

    def finish(self) -> None:
        if self._waiting or not self._tags:
            self._send(len(self._waiting))

    def discard(self) -> None:
        self._gone = True
        self._waiting.clear()

    def payload(self) -> dict[str, Json]:
        staged_file = UploadCommittable(
            self.name, self._upload, self._upload_tag, tuple(self._tags), self.size, self._announced
        )
        return staged_file.payload()

    def _send(self, count: int) -> None:
        if len(self._tags) == _MOST:
            raise ConfigError(
                f"{self.name} has {_MOST} parts, the most that S3 allows: end files earlier with Roll(size=…)"
            )
        data = bytes(self._waiting[:count])
        del self._waiting[:count]
        self._expect(lambda: self._tags.append(self._bucket.send(self.name, self._upload, len(self._tags) + 1, data)))

    def _expect(self, request: Callable[[], object]) -> None:
        try:
            request()
        except FileNotFoundError as error:
            raise Fenced(
                f"{self.name} does not exist: a newer term of job {self._part.job!r} aborted its upload"
            ) from error


class UploadStaging:
    """The creation of one writer's uploads."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.where = bucket.address.text

    def open(self, part: PartId, place: str, extension: str, announced: bool) -> UploadFile:
        name = name_of(part, extension)
        return UploadFile(self._bucket, part, f"{place}/{name}" if place else name, announced)

    def prepare(self, files: Sequence[UploadFile]) -> list[dict[str, Json]]:
        return [file.payload() for file in files]
