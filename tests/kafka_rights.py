"""Permissions of the user ``limited`` on the secured broker, and those that docs/permissions.md lists.

Rule: what the page lists is read from the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.chaos.harness import Job
from tests.secured import LIMITED
from tests.waiting import PATIENCE

PAGE = (Path(__file__).parents[1] / "docs/permissions.md").read_text(encoding="utf-8")
KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
Right = tuple[str, str, str, bool]
"""Operation, kind, name, and whether that is a prefix."""
_ACL = re.compile(r"^acl ((?:--operation \w+ )+)--([a-z-]+) (\S+)( --resource-pattern-type prefixed)?$", re.MULTILINE)


def documented(job: Job) -> set[Right]:
    """As the commands of the page give them, with the names of this job."""
    names = {
        "orders": job.input,
        "totals": job.output,
        "order-totals": job.name,
        "order-totals.": f"{job.name}.",
    }
    return {
        (operation, kind, names[name], bool(many))
        for operations, kind, name, many in _ACL.findall(PAGE)
        for operation in operations.split()[1::2]
    }


class Rights:
    """Those of the user ``limited``, who has none at first."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def give(self, rights: Iterable[Right]) -> None:
        self._bound([self._binding(right) for right in rights])

    def take(self, right: Right) -> None:
        kind, name, pattern, who, host, operation, _ = self._fields(right)
        wanted = AclBindingFilter(kind, name, pattern, who, host, operation, AclPermissionType.ALLOW)
        self._settled(self._admin.delete_acls([wanted]))

    def take_all(self) -> None:
        every = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{LIMITED}", None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        self._settled(self._admin.delete_acls([every]))

    def _bound(self, bindings: list[AclBinding]) -> None:
        if bindings:
            self._settled(self._admin.create_acls(bindings))

    @staticmethod
    def _settled(asked: Any) -> None:
        for future in asked.values():
            future.result(PATIENCE)

    @staticmethod
    def _fields(right: Right) -> tuple[Any, ...]:
        operation, kind, name, begins = right
        pattern = ResourcePatternType.PREFIXED if begins else ResourcePatternType.LITERAL
        what = AclOperation[operation.upper()]
        return KINDS[kind], name, pattern, f"User:{LIMITED}", "*", what, AclPermissionType.ALLOW

    def _binding(self, right: Right) -> AclBinding:
        return AclBinding(*self._fields(right))
