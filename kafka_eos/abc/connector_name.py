"""The name of a source or sink in a pipeline, where the user gives none."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class HasDefaultName(Protocol):
    """A source or sink whose target has a name of its own."""

    @property
    def default_name(self) -> str | None:
        """Return the name of the topic or table; None if it is not a single one."""
