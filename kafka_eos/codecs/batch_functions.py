"""Encoders and decoders of single values that are faster for many values at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class BatchDecoder(ABC):
    """A decoder that is faster for many values at once."""

    @abstractmethod
    def __call__(self, data: bytes) -> Any:
        """Decode one value."""

    @abstractmethod
    def batch(self, before: bytes, data: Sequence[bytes]) -> list[Any] | None:
        """Decode values that follow the prefix ``before``. None if a prefix differs, or one must be decoded alone."""


class BatchEncoder(ABC):
    """An encoder that is faster for many values at once."""

    @abstractmethod
    def __call__(self, value: Any) -> bytes:
        """Encode one value."""

    @abstractmethod
    def batch(self, values: Sequence[Any]) -> list[bytes] | None:
        """Encode values. None if one must be encoded alone, for instance because it is invalid."""
