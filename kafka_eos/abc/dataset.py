"""The name of what a connector reads or writes, in data catalogs."""

from __future__ import annotations

from pathlib import PurePath
from urllib.parse import urlsplit

from msgspec import Struct


class Dataset(Struct, frozen=True):
    """A dataset by OpenLineage's naming rules: ``namespace`` is where it is, ``name`` which one it is there.

    Without secrets: catalogs show both.
    """

    namespace: str
    name: str

    @staticmethod
    def at(location: str) -> Dataset:
        """Return the dataset at a path, or at a URL without login: ``s3://bucket/key`` is ``key`` in the bucket."""
        parts = urlsplit(location)
        if len(parts.scheme) < 2:  # a drive letter is no scheme
            return Dataset("file", str(PurePath(location)))
        return Dataset(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.strip("/") or "/")


class JobDataset(Struct, frozen=True):
    """A dataset of a job, with the operator that reads or writes it, and the names and types of its known fields."""

    operator: str
    dataset: Dataset
    fields: tuple[tuple[str, str], ...] = ()
