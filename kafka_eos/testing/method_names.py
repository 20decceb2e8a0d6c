"""The names of an implementation's methods, compared with those of the contract.

Rule: a name that is almost one of the contract is a mistake, because the engine never calls it. The methods of all base
classes are compared, including those that a subclass of ``DbApiSink`` may override.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from kafka_eos.abc.auditable import (
    AuditableFiles,
    AuditableSource,
    AuditableTable,
    AuditableTopic,
    SupportsLocalRun,
    SupportsSampling,
)
from kafka_eos.abc.committer import AtomicCommitter, Committer
from kafka_eos.abc.incarnation import SupportsLossCheck, SupportsRegistration
from kafka_eos.abc.sink import HasClock, Sink, Writer
from kafka_eos.abc.source import Reader, Source, SupportsIdentityCheck

ABILITIES: Final = MappingProxyType[type, Sequence[type]](
    {
        Source: (SupportsIdentityCheck, AuditableSource, SupportsSampling),
        Reader: (),
        Sink: (HasClock, AuditableTopic, AuditableFiles, AuditableTable, SupportsLocalRun),
        Writer: (),
        Committer: (AtomicCommitter, SupportsRegistration, SupportsLossCheck),
    }
)
"""The additional classes that an implementation may inherit, by contract."""
_NEAR: Final = 0.8
"""The similarity from which a name counts as mistyped; names of this package's connectors have at most 0.62."""
_SHORT: Final = 8
"""The most letters of an ability's name that is compared exactly: ``lock`` is not a mistyped ``clock``."""


@cache
def find_wrong_names(cls: type) -> Sequence[str]:
    """Return the wrong names of a class, as sentences that state the right ones."""
    wrong: list[str] = []
    for contract, abilities in ABILITIES.items():
        if issubclass(cls, contract):
            own = [each for each in cls.__mro__ if not each.__module__.startswith("kafka_eos.abc.")]
            for each in own:
                wrong += _find_mistyped(each)
            for ability in abilities:
                if not issubclass(cls, ability):
                    wrong += _find_not_inherited(cls, {name for each in own for name, _ in _public(each)}, ability)
    return wrong


def _find_mistyped(cls: type) -> Iterator[str]:
    """Yield names that this class adds to those of its base classes, and that are almost one of theirs."""
    inherited = {name: member for base in reversed(cls.__mro__[1:]) for name, member in _public(base)}
    optional = [name for name in inherited if name not in vars(cls) and name not in _abstract(cls)]
    for name, member in _public(cls):
        if name not in inherited:
            for right in difflib.get_close_matches(name, optional, 1, _NEAR):
                yield f"{cls.__name__}.{name} is never called: name it {right}, or choose a name less like it"
        elif callable(inherited[name]) and not callable(getattr(cls, name)):
            yield (
                f"{cls.__name__}.{name} is a method of the contract, but here it is {member!r}: give the attribute "
                "another name"
            )


def _find_not_inherited(cls: type, names: Collection[str], ability: type) -> Iterator[str]:
    """Yield the ability if the class has all its methods, and does not inherit it."""
    required = [name for name in vars(ability) if name in _abstract(ability)]
    found = [difflib.get_close_matches(name, names, 1, _NEAR if len(name) > _SHORT else 1.0) for name in required]
    if all(found):
        has, needs = ", ".join(name for (name,) in found), ", ".join(required)
        yield f"{cls.__name__} does not inherit {ability.__name__}, so {has} is never called: inherit it, with {needs}"


def _public(cls: type) -> list[tuple[str, Any]]:
    """Return the attributes of a class that are neither private nor classes."""
    members = vars(cls).items()
    return [(name, member) for name, member in members if not name.startswith("_") and not isinstance(member, type)]


def _abstract(cls: type) -> frozenset[str]:
    names: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    return names
