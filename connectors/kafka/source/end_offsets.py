"""The end of a bounded source: the end at its first start, at a time, or given offsets.

Rule: the end of a partition is looked up once, when the partition is first read, and is then stored in its position. A
restart reads up to the same record, whatever has been written since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from kafka_eos.connectors.kafka.source.positions import ending, partition_of, topic_of, until_of
from kafka_eos.connectors.kafka.source.subscription import Subscription
from kafka_eos.connectors.kafka.source.topic_survey import STABLE_OFFSET, OffsetRule, Start, TopicSurvey, is_to_come
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions

Until: TypeAlias = "Literal['latest'] | datetime | Mapping[int, int] | Mapping[str, int]"
"""The records at the first start; the records before a past time; or the ends of partitions, exclusive."""


def expect_behind(until: datetime, start: Start) -> None:
    """Raise ConfigError if no time is between them."""
    if isinstance(start, datetime) and until.astimezone(UTC) <= start.astimezone(UTC):
        raise ConfigError(f"until={until} is not after start={start}: the source would read nothing")


class EndingOffsets(Struct, frozen=True):
    """The rule or the offsets at which a bounded source stops."""

    rule: OffsetRule | None
    offsets: Mapping[str, int]
    text: str

    @classmethod
    def of(cls, until: Until, topics: Subscription) -> EndingOffsets:
        """Parse the user's argument. Raise ConfigError if it is not a valid end."""
        if until == "latest":
            return cls(STABLE_OFFSET, {}, "latest")
        if isinstance(until, datetime):
            return cls(OffsetRule.of(until), {}, str(until))
        wrong = ConfigError(
            f'until={until!r}: use "latest", a datetime, or offsets: {{0: 100}} by partition of the one topic, else '
            '{"topic/0": 100}.'
        )
        given: Any = until
        if not isinstance(given, Mapping) or not given:
            raise wrong
        offsets: dict[str, int] = {}
        for place, offset in given.items():
            if isinstance(place, int) and not topics.several:
                place = f"{topics.text}/{place}"
            topic, _, partition = str(place).rpartition("/")
            if not (isinstance(place, str) and topics.can_read(topic) and partition.isdecimal()):
                raise wrong
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise wrong
            offsets[place] = offset
        return cls(None, offsets, ", ".join(f"{place}: {offset}" for place, offset in sorted(offsets.items())))

    @property
    def rules(self) -> Sequence[OffsetRule]:
        """Return the offsets to look up for each topic."""
        return [STABLE_OFFSET] if self.rule in (None, STABLE_OFFSET) else [STABLE_OFFSET, self.rule]

    def add_ends(self, positions: Positions, survey: TopicSurvey) -> Positions:
        """Return the positions with an ending offset added where it is missing.

        Raises ConfigError if no end is known, and Retryable while an open transaction may have records before it. Other
        errors are those of ``TopicSurvey.offsets``.
        """
        missing = [split for split, at in positions.items() if until_of(at) is None]
        if self.rule is None:
            if unnamed := sorted(split for split in missing if split not in self.offsets):
                raise ConfigError(
                    f"until= has no offset for {', '.join(unnamed)}: list every partition, with 0 for "
                    "those that are not to be read, or end all of them at 'latest' or at a time."
                )
            if missing and (foreign := sorted(self.offsets.keys() - positions.keys())):
                raise ConfigError(
                    f"until= lists {', '.join(foreign)}, but the source reads "
                    f"{', '.join(sorted(positions))}: remove partitions that do not exist."
                )
            ends = {split: self._expect_there(split, survey) for split in missing}
        else:
            if missing and isinstance(self.rule.start, datetime) and is_to_come(self.rule.start):
                raise ConfigError(
                    f"until={self.rule.start} is in the future, so its end offsets are not known yet. Start "
                    'the job later, or without until=; until="latest" ends with the records that exist now.'
                )
            ends = {split: self._looked_up(split, survey) for split in missing}
        return {**positions, **{split: ending(positions[split], end) for split, end in ends.items()}}

    def _expect_there(self, split: SplitId, survey: TopicSurvey) -> int:
        end, now = self.offsets[split], survey.offsets(topic_of(split), STABLE_OFFSET)[partition_of(split)]
        if end > now:
            raise ConfigError(
                f"until= ends {split} before offset {end}, and its committed records end before {now}. "
                'Start the job when they exist, or use until="latest", which ends with the records that exist now.'
            )
        return end

    def _looked_up(self, split: SplitId, survey: TopicSurvey) -> int:
        assert self.rule is not None
        end = survey.offsets(topic_of(split), self.rule)[partition_of(split)]
        if end > survey.offsets(topic_of(split), STABLE_OFFSET)[partition_of(split)]:
            raise Retryable(
                f"{split} is to be read up to offset {end}, but a transaction before that is still "
                "open (kafka-transactions.sh list --state Ongoing). The source waits for its end, "
                f"because its records may be earlier than until={self.text}"
            )
        return end
