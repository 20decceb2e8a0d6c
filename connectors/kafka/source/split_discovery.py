"""The discovery of a source: the partitions that it reads, from which offset to which, by a survey of the cluster.

Rule: a start rule applies to the very first discovery only. Later a known partition continues from its position, and a
new one is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TypeGuard

from msgspec import Struct

from kafka_eos.connectors.kafka.source.end_offsets import EndingOffsets
from kafka_eos.connectors.kafka.source.positions import (
    continued,
    endless,
    moved,
    offset_of,
    positions,
    topic_of,
    until_of,
)
from kafka_eos.connectors.kafka.source.subscription import Subscription
from kafka_eos.connectors.kafka.source.topic_survey import (
    HIGH_WATERMARK,
    LOG_START,
    STABLE_OFFSET,
    OffsetRule,
    Start,
    TopicSurvey,
    is_to_come,
)
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position, Positions


class SplitDiscovery(Struct, frozen=True):
    """The discovery of one source: its topics, where its first start begins, and its final end, if it has one."""

    topics: Subscription
    start: Start
    end: EndingOffsets | None

    def select_surveyed(self, listed: Sequence[str], known: Positions) -> set[str]:
        """Return the topics to survey, of those that the cluster lists.

        Include topics that were read and are not listed: they are queried by name before they count as deleted.
        """
        read = self.topics.drop_excluded(known) if self.topics.pattern is not None else ()
        return {*self.topics.select_topics(listed), *map(topic_of, read)}

    def list_lookups(self, survey: TopicSurvey, known: Positions | None) -> list[tuple[str, OffsetRule]]:
        """Return the offsets to look up for each topic."""
        if known is not None:
            rules = [LOG_START, HIGH_WATERMARK]
        else:
            rules = [OffsetRule.of(self.start), *([] if self.end is None else self.end.rules)]
        return [(topic, rule) for topic in self.topics.select_topics(survey.readable) for rule in rules]

    def find_positions(self, survey: TopicSurvey, known: Positions | None) -> Positions:
        """Return the partitions with their positions; see ``Source.discover``."""
        found = self._begin(survey) if known is None else self._continue(survey, known)
        if self.end is None:
            return endless(found)
        # Partitions that are found after the end was looked up are behind it.
        there = {split: at for split, at in found.items() if split in known} if self._has_ends(known) else found
        return self.end.add_ends(there, survey)

    def _has_ends(self, known: Positions | None) -> TypeGuard[Positions]:
        """Return whether the end of all partitions was looked up before."""
        read = [*self.topics.drop_excluded(known or {}).values()]
        return bool(read) and all(until_of(at) is not None for at in read)

    def _begin(self, survey: TopicSurvey) -> dict[SplitId, Position]:
        topics = self.topics.select_topics(survey.readable)
        if not topics:
            for topic in self.topics.select_topics(survey.there):
                survey.facts(topic)  # says which permission is missing
            raise self.topics.nothing_matches()
        if isinstance(self.start, datetime) and is_to_come(self.start):
            raise ConfigError(
                f"start={self.start} is in the future, so the first record after it is unknown, and "
                'earlier records would also be read. Start the job at that time, or use "latest".'
            )
        found: dict[SplitId, Position] = {}
        for topic in topics:
            topic_id = survey.facts(topic).topic_id
            found |= positions(topic, topic_id, survey.offsets(topic, OffsetRule.of(self.start)))
        return found

    def _continue(self, survey: TopicSurvey, known: Positions) -> dict[SplitId, Position]:
        self.topics.check(known)
        topics = self.topics.select_topics(survey.readable)
        by_topic: dict[str, dict[SplitId, Position]] = {topic: {} for topic in topics}
        for split, at in known.items():
            by_topic.setdefault(topic_of(split), {})[split] = at
        found: dict[SplitId, Position] = {}
        for topic, splits in by_topic.items():
            if self.topics.is_excluded(topic):
                found |= splits
                continue
            if splits and topic not in survey.there:
                raise self.topics.gone(topic)
            low, high = survey.offsets(topic, LOG_START), survey.offsets(topic, HIGH_WATERMARK)
            found |= continued(topic, survey.facts(topic).topic_id, splits, low, high)
        return found

    def find_end_positions(self, survey: TopicSurvey) -> Positions:
        """Return the positions after the last record that a read_committed reader can see now."""
        found: dict[SplitId, Position] = {}
        for topic in self.topics.select_topics(survey.readable):
            if topic not in survey.there:  # ends are queried only for topics that were found before
                raise self.topics.gone(topic)
            found |= positions(topic, survey.facts(topic).topic_id, survey.offsets(topic, STABLE_OFFSET))
        return found

    def get_bounds(self, positions: Positions) -> Positions | None:
        """Return the end positions of a bounded source, or None."""
        if self.end is None:
            return None
        ends = {split: until_of(at) for split, at in self.topics.drop_excluded(positions).items()}
        return {split: moved(positions[split], until) for split, until in ends.items() if until is not None}

    def list_finished_splits(self, positions: Positions) -> Collection[SplitId]:
        """Return partitions that are read to their final end."""
        ends = self.get_bounds(positions) or {}
        return [split for split, end in ends.items() if offset_of(positions[split]) >= offset_of(end)]
