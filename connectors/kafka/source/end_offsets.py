"""Where a source ends for good: what there is at its first start, what there was at a time, or offsets.

Rule: the end of a partition is looked up once, when the partition is read first, and stands in its position from then
on: a restart reads up to the same record, whatever has come since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from kafka_eos.connectors.kafka.source.positions import ending, partition_of, topic_of, until_of
from kafka_eos.connectors.kafka.source.subscription import Subscription
from kafka_eos.connectors.kafka.source.topic_survey import END, Rule, Start, Survey, is_to_come
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions

Until: TypeAlias = "Literal['latest'] | datetime | Mapping[int, int] | Mapping[str, int]"
"""What is there at the first start; what there was before a time that is over; or where partitions end, exclusive."""


def expect_behind(until: datetime, start: Start) -> None:
    """ConfigError if nothing lies between them."""
    if isinstance(start, datetime) and until.astimezone(UTC) <= start.astimezone(UTC):
        raise ConfigError(f"until={until} is not behind start={start}: the source would read nothing")


@dataclass(frozen=True, slots=True)
class End:
    """``rule`` gives the end of each partition, or ``offsets`` do."""

    rule: Rule | None
    offsets: Mapping[str, int]
    text: str

    @classmethod
    def of(cls, until: Until, topics: Subscription) -> End:
        """What the user wrote. ConfigError if it is no end."""
        if until == "latest":
            return cls(END, {}, "latest")
        if isinstance(until, datetime):
            return cls(Rule.of(until), {}, str(until))
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
            if not (isinstance(place, str) and topics.reads(topic) and partition.isdecimal()):
                raise wrong
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise wrong
            offsets[place] = offset
        return cls(None, offsets, ", ".join(f"{place}: {offset}" for place, offset in sorted(offsets.items())))

    @property
    def rules(self) -> Sequence[Rule]:
        """What is asked of each topic."""
        return [END] if self.rule in (None, END) else [END, self.rule]

    def set(self, positions: Positions, survey: Survey) -> Positions:
        """These positions with their ends; those that have one keep it.

        ConfigError if nothing tells an end, Retryable while a transaction is open that may have records before it.
        Raises as ``Survey.offsets``.
        """
        missing = [split for split, at in positions.items() if until_of(at) is None]
        if self.rule is None:
            if unnamed := sorted(split for split in missing if split not in self.offsets):
                raise ConfigError(
                    f"until= names no offset of {', '.join(unnamed)}: name each partition, those that are not to be "
                    "read with 0, or end them all at 'latest' or at a time."
                )
            if missing and (foreign := sorted(self.offsets.keys() - positions.keys())):
                raise ConfigError(
                    f"until= names {', '.join(foreign)}, and the source reads {', '.join(sorted(positions))}: "
                    "leave out what is not there."
                )
            ends = {split: self._expect_there(split, survey) for split in missing}
        else:
            if missing and isinstance(self.rule.start, datetime) and is_to_come(self.rule.start):
                raise ConfigError(
                    f"until={self.rule.start} is still to come: nobody can tell yet which records are before it. Start "
                    'the job later, or without until=; "latest" ends it with what is there now.'
                )
            ends = {split: self._looked_up(split, survey) for split in missing}
        return {**positions, **{split: ending(positions[split], end) for split, end in ends.items()}}

    def _expect_there(self, split: SplitId, survey: Survey) -> int:
        end, now = self.offsets[split], survey.offsets(topic_of(split), END)[partition_of(split)]
        if end > now:
            raise ConfigError(
                f"until= ends {split} before offset {end}, and its committed records end before {now}: nobody can tell "
                'when the rest comes. Start the job later; "latest" ends it with what is there now.'
            )
        return end

    def _looked_up(self, split: SplitId, survey: Survey) -> int:
        assert self.rule is not None
        end = survey.offsets(topic_of(split), self.rule)[partition_of(split)]
        if end > survey.offsets(topic_of(split), END)[partition_of(split)]:
            raise Retryable(
                f"{split} is to be read up to offset {end}, and a transaction before that is still open "
                "(kafka-transactions.sh list --state Ongoing): it is waited for, since its records may be earlier than "
                f"until={self.text}"
            )
        return end
