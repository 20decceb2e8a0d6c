"""What a type checker must infer of patterns. Checked with ``mypy --strict``; never run."""

from typing import assert_type

import msgspec

from kafka_eos import OutputTag, Pattern, Pipeline, Stream, monotonic
from kafka_eos.connectors.kafka import KafkaSource


class Login(msgspec.Struct):
    user: str
    ok: bool


class Alarm(msgspec.Struct):
    user: str


def alarm(user: str, found: dict[str, list[Login]]) -> Alarm:
    return Alarm(user)


def tries(user: str, found: dict[str, list[Login]]) -> int:
    return len(found["failed"])


TRIES, NAMES, LATE = OutputTag("tries", int), OutputTag("names", str), OutputTag("late", Login)
pipeline = Pipeline("typed")
logins = pipeline.source(KafkaSource("logins", value=Login), name="logins").with_timestamps(watermarks=monotonic())
by_user = logins.key_by(lambda login: login.user)

guessed = Pattern[Login].begin("failed", lambda login: not login.ok).times(3).next("in", lambda login: login.ok)
assert_type(guessed.within(minutes=5), Pattern[Login])
found = by_user.match(guessed, alarm, name="guessed", timed_out=TRIES, on_timeout=tries, late=LATE)
assert_type(found, Stream[Alarm])
assert_type(found.side_output(TRIES), Stream[int])
assert_type(by_user.match(guessed, lambda user, rows: rows["failed"][0].ok), Stream[bool])

by_user.match(guessed, alarm, timed_out=NAMES, on_timeout=tries)  # type: ignore[arg-type]
Pattern[Login].begin("failed", lambda login: login.host)  # type: ignore[attr-defined]
logins.key_by(lambda login: 1).match(guessed, alarm)  # type: ignore[arg-type]
