"""What is told of an exception: its class and place, and no part of a record unless a setting shows messages."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kafka_eos.codecs.msgpack_codec import MsgpackCodec
from kafka_eos.core import error_messages as messages
from kafka_eos.core.errors import ConfigError, EnvironmentFailed, PoisonRecord
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.runtime.worker.session import failure

PAN = "4111-1111-1111-1111"


@pytest.fixture(autouse=True)
def hidden(messages_are_shown: None) -> None:
    """Messages are hidden, as in a job without the setting."""
    messages.show_error_messages(False)


def raised(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        call()
    return caught.value


def fails() -> None:
    int(PAN)


def fails_inside() -> None:
    try:
        fails()
    except ValueError as error:
        raise LookupError(PAN) from error


@pytest.mark.parametrize("call", [fails, fails_inside])
def test_a_description_has_the_class_and_the_place_and_no_part_of_the_record(call: Callable[[], None]) -> None:
    error = raised(call)

    for told in (messages.describe_error(error), messages.summarize_error(error), messages.format_traceback(error)):
        assert PAN not in told
        assert type(error).__name__ in told
        assert "test_error_messages.py" in told
    assert "show_error_messages=true" in messages.describe_error(error)


def test_the_setting_shows_messages() -> None:
    messages.show_error_messages(True)
    error = raised(fails_inside)

    assert f"LookupError: {PAN}" in messages.describe_error(error)
    assert f"invalid literal for int() with base 10: '{PAN}'" in messages.format_traceback(error)
    assert messages.show_value(PAN) == repr(PAN)


def test_of_a_value_the_class_is_told() -> None:
    assert messages.show_value(PAN) == "<hidden str>"


def test_what_a_session_reports_has_no_part_of_the_record() -> None:
    """Neither for a record at fault, nor for the environment, nor for an error that nobody has foreseen."""
    poison = raised(lambda: _stop_at(raised(fails)))
    with pytest.raises(EnvironmentFailed) as away:
        ErrorRules().expect_record(raised(lambda: _refused()), "priced", "orders/0/3")

    for error in (poison, away.value, raised(fails_inside), raised(fails)):
        report = failure(1, error)
        assert PAN not in report.reason + report.details, report
    assert "orders/0/3" in failure(1, poison).reason
    assert "Connection refused" in failure(1, away.value).reason


def _stop_at(error: Exception) -> None:
    raise PoisonRecord("orders/0/3", "parse", messages.describe_error(error)) from error


def _refused() -> None:
    try:
        fails()
    except ValueError as error:
        raise ConnectionRefusedError(errno.ECONNREFUSED, PAN) from error


class Card(msgspec.Struct):
    pan: int
    kind: str = ""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: msgspec.json.decode(b'{"pan": "x"}', type=Card), "Expected `int`, got `str` - at `$.pan`"),
        (lambda: msgspec.json.decode(b"{}", type=Card), "Object missing required field `pan`"),
        (lambda: MsgpackCodec(Card).encode(PAN), "expected Card, got str"),
        (lambda: (_ for _ in ()).throw(ConfigError("set a password")), "set a password"),
    ],
)
def test_messages_that_name_types_only_are_told(call: Callable[[], Any], told: str) -> None:
    assert told in messages.describe_error(raised(call))


def _says(text: str) -> None:
    raise ValueError(text)


def test_the_form_of_a_message_is_believed_of_our_own_codecs_only() -> None:
    error = raised(lambda: _says("expected card, got p4111"))

    assert "p4111" not in messages.describe_error(error)


def test_a_library_that_quotes_its_input_is_not_believed() -> None:
    told = messages.describe_error(raised(lambda: json.loads(f'{{"pan": {PAN}}}')))

    assert told.startswith("JSONDecodeError (raised at ")
    assert PAN not in told
