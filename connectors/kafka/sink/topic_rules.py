"""The rules of a topic that a broker applies to single records: bounds of timestamps, and keys if it is compacted.

Pure. If one record violates a rule, the broker refuses its whole batch, and the transaction fails. So the writer
rejects such rows before it sends them. Times are compared with this machine's clock, since the broker's is not known
precisely. If the broker refuses a row that was sent, see ``broker_refusals``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, repeat
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.connectors.kafka.sink.record_encoders import NOW, ProducerColumns

SETTINGS: Final = (
    "cleanup.policy",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
_UNBOUNDED: Final = 2**63 - 1


class TopicRules(Struct, frozen=True):
    """The requirements of a topic for each record. ``before`` and ``after``: milliseconds from the broker's clock."""

    needs_key: bool = False
    before: int = _UNBOUNDED
    after: int = _UNBOUNDED

    @classmethod
    def of(cls, settings: Mapping[str, str | None]) -> Self:
        """Return the rules from a topic's settings. A setting that is None is unknown and adds no rule."""
        needs_key = "compact" in (settings["cleanup.policy"] or "")
        if settings["message.timestamp.type"] == "LogAppendTime":
            return cls(needs_key)
        before, after, both = (int(settings[name] or _UNBOUNDED) for name in SETTINGS[2:])
        # Before Kafka 4.0 one setting applies to both. It is used where the newer one is not set.
        return cls(needs_key, *(both if bound == _UNBOUNDED else bound for bound in (before, after)))

    def find_refused(self, topic: str, columns: ProducerColumns, now: int) -> dict[int, str]:
        """Return the reason for each row that the topic refuses, by ascending index. ``now``: in milliseconds."""
        rows, found = len(columns.values), dict[int, str]()
        if self.needs_key and (isinstance(columns.keys, repeat) or None in columns.keys):
            reason = (
                f"the output has no key, but the topic {topic} is compacted (cleanup.policy), so "
                "each record needs one. Give the sink key=…, or filter such rows first"
            )
            found = {index: reason for index, key in enumerate(islice(columns.keys, rows)) if key is None}
        if not isinstance(columns.timestamps, repeat):
            times = list(columns.timestamps)
            columns.timestamps = times
            if times and (max(times) - now > self.after or now - min(times) > self.before):
                for index, time in enumerate(times):
                    if time != NOW and (reason := self._refusal(topic, time - now)):
                        found.setdefault(index, reason)
        return dict(sorted(found.items()))

    def with_permitted_times(self, columns: ProducerColumns, now: int) -> ProducerColumns:
        """Return the columns with the time of writing in place of each timestamp that the topic refuses."""
        times = list(columns.timestamps)
        return replace(columns, timestamps=[NOW if self._refusal("", time - now) else time for time in times])

    def _refusal(self, topic: str, ahead: int) -> str:
        if ahead > self.after:
            limit, where = f"message.timestamp.after.max.ms={self.after}", f"{ahead} ms ahead of the clock"
        elif -ahead > self.before:
            limit, where = f"message.timestamp.before.max.ms={self.before}", f"{-ahead} ms behind the clock"
        else:
            return ""
        return (
            f"the output's timestamp is {where}, but the topic {topic} has the limit {limit}. The timestamp is "
            "the event time of its row, timer or window, unless KafkaSink(timestamp=…) sets another one (None: the "
            "time of writing). Check that event times are milliseconds since 1970. If they are, raise the limit"
        )


ANY_RECORD: Final = TopicRules()
"""The rules of a topic that accepts every record."""
