"""What a registered schema refers to: other schemas, which the registry has, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_eos.errors import PlanError
from kafka_eos.schemas.registries.registry import RegisteredSchema, Registry
from kafka_eos.schemas.types import type_name

_DEEPEST: Final = 32
"""Schemas that refer to each other, one below the other."""


def subjects_of(given: Mapping[type, str], named: Mapping[str, type], whole: type) -> dict[str, str]:
    """What the user says of types in ``whole``, by their names there. PlanError for one that is not in it."""
    names = {tp: name for name, tp in named.items() if tp is not whole}
    for tp, subject in given.items():
        if tp not in names:
            held = ", ".join(type_name(each) for each in names) or "none"
            raise PlanError(
                f"references={{{type_name(tp)}: …}}: {type_name(whole)} holds no such type; those that it holds: {held}"
            )
        if not subject:
            raise PlanError(f"references={{{type_name(tp)}: {subject!r}}}: the subject is a text")
    return {names[tp]: subject for tp, subject in given.items()}


def below(schema: RegisteredSchema, registry: Registry) -> dict[str, RegisteredSchema]:
    """What it refers to, and what that refers to, each before whoever needs it, by the names of the references.

    ValueError if something is not there, if one name stands for two schemas, or if there is no end.
    """
    return _below(schema, registry, _DEEPEST)


def _below(schema: RegisteredSchema, registry: Registry, deepest: int) -> dict[str, RegisteredSchema]:
    if deepest == 0:
        raise ValueError(f"its references are more than {_DEEPEST} deep")
    found: dict[str, RegisteredSchema] = {}
    for reference in schema.references:
        other = registry.referenced(reference)
        if other is None:
            raise ValueError(f"it refers to version {reference.version} of {reference.subject!r}, which is not there")
        for name, each in (*_below(other, registry, deepest - 1).items(), (reference.name, other)):
            if found.setdefault(name, each) != each:
                raise ValueError(f"it refers to two schemas as {name!r}")
    return found
