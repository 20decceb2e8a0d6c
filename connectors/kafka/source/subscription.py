"""The topics that a source reads: one, several, or all whose names match a pattern.

Pure. Rule: the topics depend only on the user's arguments and on the topics of the cluster. A matching topic is read
from its beginning whenever it is found, by a running job or by a later start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from kafka_eos.connectors.kafka.source.positions import topic_of
from kafka_eos.connectors.kafka.topic_formats import topic_name
from kafka_eos.core.errors import ConfigError, InputLost, LossCause
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json, Positions

_MOST_NAMES: Final = 10
"""Most topic names in a message."""

Topics: TypeAlias = str | Sequence[str] | re.Pattern[str]
"""A topic, several, or a pattern that the whole name of a topic must match."""


class Subscription(Struct, frozen=True):
    """Either ``names``, which must exist, or a ``pattern``, whose matching topics may be created and deleted."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    exclude: frozenset[str] = frozenset()
    """Topics that match and are not read, even if they were before."""
    several: bool = False
    """True if there may be several topics; each position then names its topic."""

    @classmethod
    def of(cls, given: Topics, exclude: Collection[str] = ()) -> Subscription:
        """Parse the user's arguments. Raise ConfigError if they name no topic, or one twice."""
        if isinstance(exclude, str):
            raise ConfigError(f"exclude must be a list of topics: exclude=[{exclude!r}]")
        if isinstance(given, re.Pattern):
            if not isinstance(given.pattern, str):
                raise ConfigError(
                    f"a topic pattern must be compiled from text, as in re.compile('a-.+'), not from {given.pattern!r}"
                )
            excluded = frozenset(map(topic_name, exclude))
            if foreign := sorted(name for name in excluded if not given.fullmatch(name)):
                raise ConfigError(
                    f"exclude= has {', '.join(map(repr, foreign))}, which the pattern {given.pattern!r} "
                    "does not match as a whole, so it excludes nothing. Correct the name, or omit it"
                )
            return cls(pattern=given, exclude=excluded, several=True)
        if exclude:
            raise ConfigError("exclude= needs a pattern of topics: omit it, and list the topics to read")
        if isinstance(given, str):
            return cls((topic_name(given),))
        names = tuple(map(topic_name, given))
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"a source reads one topic, several different ones, or a pattern, not {given!r}")
        return cls(names, several=True)

    @property
    def only(self) -> str | None:
        """Return the topic if there can be only one."""
        return self.names[0] if len(self.names) == 1 else None

    @property
    def text(self) -> str:
        """Return the topics for messages."""
        return self.pattern.pattern if self.pattern is not None else ", ".join(self.names)

    def describe(self) -> Mapping[str, Json]:
        """Return the topics for ``explain``."""
        if self.pattern is not None:
            description: dict[str, Json] = {"topics": f"those that match {self.text}"}
            return description | ({"exclude": ", ".join(sorted(self.exclude))} if self.exclude else {})
        return {"topics" if self.several else "topic": self.text}

    def select_topics(self, there: Iterable[str]) -> list[str]:
        """Return the topics to read, of those that exist."""
        if self.pattern is None:
            return [*self.names]
        return [name for name in there if self.pattern.fullmatch(name) and name not in self.exclude]

    def can_read(self, topic: str) -> bool:
        """Return whether the topic's name belongs to the subscription."""
        if self.pattern is None:
            return topic in self.names
        return self.pattern.fullmatch(topic) is not None

    def is_excluded(self, topic: str) -> bool:
        """Return whether the user has excluded the topic, whether or not the job has read it."""
        return topic in self.exclude

    def drop_excluded(self, positions: Positions) -> Positions:
        """Return the positions without those of excluded topics."""
        return {split: at for split, at in positions.items() if not self.is_excluded(topic_of(split))}

    def find_unknown_exclusions(self, there: Collection[str], known: Iterable[SplitId]) -> list[str]:
        """Return a notice for excluded names that match no existing or known topic.

        Such a name may be mistyped: then the topic that was meant is read.
        """
        unknown = sorted(self.exclude - {*there} - {topic_of(split) for split in known})
        if not unknown:
            return []
        return [
            f"exclude= has {', '.join(map(repr, unknown))}, but the cluster shows no such topic. "
            f"The source reads: {_list_some(self.select_topics(there)) or 'none'}. If one of these was meant, correct "
            "the name; a topic of that name that is created later is not read"
        ]

    def describe_forbidden(self, topics: Sequence[str]) -> list[str]:
        """Return a notice for topics that match, and that the user may not read."""
        if not topics:
            return []
        return [
            f"the user may not read {_list_some(topics)}, although the pattern {self.text!r} matches. The source "
            "leaves such topics out, and reads each from its beginning once the permission is there"
        ]

    def find_feedback(self, topic: str, *, refused: bool) -> str | None:
        """Return why this topic must not be written to; None if it may.

        ``refused``: it is the topic of dead letters.
        """
        if not self.can_read(topic) or self.is_excluded(topic):
            return None
        exclude = f"Exclude it, exclude=[{topic!r}]" if self.pattern else "Write to another topic"
        if refused:
            return (
                f"reads topic {topic}, where its own dead letters go: each of them would be rejected again, forever. "
                f"{exclude}."
            )
        reads = f"all topics that match {self.text}, also {topic}" if self.pattern else f"topic {topic}"
        return (
            f"reads {reads}, to which the pipeline writes its rows: they would circulate forever. {exclude}; "
            "if the loop is intended and ends by itself, pass allow_feedback=True to the source."
        )

    def check(self, known: Iterable[SplitId]) -> None:
        """Raise ConfigError if stored positions belong to topics that the source does not read any more."""
        foreign = sorted(split for split in known if not self.can_read(topic_of(split)))
        if foreign:
            reads = f"topics that match {self.text!r}" if self.pattern is not None else repr(self.text)
            raise ConfigError(
                f"the checkpoint contains positions of {', '.join(foreign)}, but the source now reads "
                f"{reads}. Give the source a new name, or start the job over."
            )

    def nothing_matches(self) -> ConfigError:
        return ConfigError(
            f"no topic matches {self.text!r} as a whole, so the pattern may be mistyped. Create "
            "the first topic, or correct the pattern; later ones are found while the job runs."
        )

    def gone(self, topic: str) -> InputLost:
        go_on = "start the job under another name" if self.pattern is None else f"say so: exclude=[{topic!r}]"
        return InputLost(
            f"topic {topic}, which the job has read, does not exist any more, so it is unknown "
            f"whether all of it was read. To continue without it, {go_on} "
            "(docs/failures-and-recovery.md, missing input).",
            LossCause.MISSING,
        )


def _list_some(topics: Sequence[str]) -> str:
    more = f" and {rest} more" if (rest := len(topics) - _MOST_NAMES) > 0 else ""
    return ", ".join(topics[:_MOST_NAMES]) + more
