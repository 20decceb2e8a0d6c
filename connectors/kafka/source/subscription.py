"""Which topics a source reads: one, several, or all whose names match a pattern.

Pure. Rule: what is read follows from what the user wrote and from what the cluster has, and from nothing else: a topic
that matches is read from its beginning whenever it is found, by a running job or by a later start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka_eos.connectors.kafka.source.positions import topic_of
from kafka_eos.connectors.kafka.topic_formats import topic_name
from kafka_eos.core.errors import ConfigError, InputLost
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json

_MOST_NAMES: Final = 10
"""Of topics in a message."""

Topics: TypeAlias = str | Sequence[str] | re.Pattern[str]
"""A topic, several, or a pattern that the whole name of a topic must match."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """``names`` are there in any case; topics that match ``pattern`` may come and go. One of both is given."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    exclude: frozenset[str] = frozenset()
    """Topics that match and are not read, also if they were."""
    several: bool = False
    """May there be more than one? Then each position names its topic."""

    @classmethod
    def of(cls, given: Topics, exclude: Collection[str] = ()) -> Subscription:
        """What the user wrote. ConfigError if it names nothing, or something twice."""
        if isinstance(exclude, str):
            raise ConfigError(f"exclude= is a list of topics: exclude=[{exclude!r}]")
        if isinstance(given, re.Pattern):
            if not isinstance(given.pattern, str):
                raise ConfigError(f"a pattern of topics is one of text, re.compile('a-.+'); not of {given.pattern!r}")
            excluded = frozenset(map(topic_name, exclude))
            if foreign := sorted(name for name in excluded if not given.fullmatch(name)):
                raise ConfigError(
                    f"exclude= has {', '.join(map(repr, foreign))}, which the pattern {given.pattern!r} does not match "
                    "as a whole, so nothing is taken out. Correct the name, or leave it out"
                )
            return cls(pattern=given, exclude=excluded, several=True)
        if exclude:
            raise ConfigError("exclude= takes topics out of a pattern: leave it out, and name the topics that are read")
        if isinstance(given, str):
            return cls((topic_name(given),))
        names = tuple(map(topic_name, given))
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"a source reads a topic, several different ones, or a pattern; not {given!r}")
        return cls(names, several=True)

    @property
    def only(self) -> str | None:
        """The topic, if it is the only one that there can be."""
        return self.names[0] if len(self.names) == 1 else None

    @property
    def text(self) -> str:
        """For people."""
        return self.pattern.pattern if self.pattern is not None else ", ".join(self.names)

    def describe(self) -> Mapping[str, Json]:
        """For ``explain``."""
        if self.pattern is not None:
            said: dict[str, Json] = {"topics": f"those that match {self.text}"}
            return said | ({"exclude": ", ".join(sorted(self.exclude))} if self.exclude else {})
        return {"topics" if self.several else "topic": self.text}

    def chosen(self, there: Iterable[str]) -> list[str]:
        """The topics to read, of those that are ``there``: all that are named, or all that match."""
        if self.pattern is None:
            return [*self.names]
        return [name for name in there if self.pattern.fullmatch(name) and name not in self.exclude]

    def reads(self, topic: str) -> bool:
        """Is this topic one of the source's, as far as its name tells?"""
        if self.pattern is None:
            return topic in self.names
        return self.pattern.fullmatch(topic) is not None

    def is_let_go(self, topic: str) -> bool:
        """Does the user say that it is not read any more, wherever the job is in it?"""
        return topic in self.exclude

    def excluded_in_vain(self, there: Collection[str], known: Iterable[SplitId]) -> list[str]:
        """In words, which excluded names are none of the topics that are ``there``, and were never ``known``.

        Such a name may be mistyped: then the topic that was meant is read.
        """
        unknown = sorted(self.exclude - {*there} - {topic_of(split) for split in known})
        if not unknown:
            return []
        chosen = self.chosen(there)
        read = ", ".join(chosen[:_MOST_NAMES]) + (
            f" and {rest} more" if (rest := len(chosen) - _MOST_NAMES) > 0 else ""
        )
        return [
            f"exclude= has {', '.join(map(repr, unknown))}, and the cluster shows no such topic. "
            f"Read are: {read or 'none'}. Correct the name if one of these was meant; a topic of that name that comes "
            "later is not read"
        ]

    def reads_back(self, topic: str, *, refused: bool) -> str | None:
        """Why what is read must not be written to this topic; None if it may. A topic that is named may be meant.

        ``refused``: it is where records go that are refused.
        """
        if not self.reads(topic) or self.is_let_go(topic):
            return None
        if refused:
            return (
                f"reads topic {topic}, where its own dead letters go: each of them would be refused again, for ever. "
                + (f"Take it out, exclude=[{topic!r}]." if self.pattern else "Send them to another topic.")
            )
        if self.pattern is None:
            return None
        return (
            f"reads all topics that match {self.text}, and {topic} is one that its own rows are written to: they would "
            f"come round for ever. Take it out, exclude=[{topic!r}]; if it is meant, name the topics in a list."
        )

    def check(self, known: Iterable[SplitId]) -> None:
        """ConfigError if stored positions are of topics that the source does not read: it was given other ones."""
        foreign = sorted(split for split in known if not self.reads(topic_of(split)))
        if foreign:
            reads = f"topics that match {self.text!r}" if self.pattern is not None else repr(self.text)
            raise ConfigError(
                f"the checkpoint holds positions of {', '.join(foreign)}, but the source now reads {reads}. "
                "Give the source a new name, or start the job anew."
            )

    def nothing_matches(self) -> ConfigError:
        return ConfigError(
            f"no topic matches {self.text!r} as a whole: a pattern that reads nothing may be mistyped. Make the first "
            "topic, or correct the pattern; later ones are found while the job runs."
        )

    def gone(self, topic: str) -> InputLost:
        go_on = "start the job under another name" if self.pattern is None else f"say so: exclude=[{topic!r}]"
        return InputLost(
            f"topic {topic}, which the job has read, is not there any more: nobody can tell whether all of it was "
            f"read. To go on without it, {go_on} (docs/operations.md, input that is gone)."
        )
