"""Messages of the libraries of lake tables: what they say of rows is hidden, the rest is shown."""

from __future__ import annotations

import pytest

from kafka_eos.connectors._lake.lake_errors import describe_lake_error
from kafka_eos.core.error_messages import show_error_messages

PAN = "4111-2222"


@pytest.fixture(autouse=True)
def _hidden() -> None:
    show_error_messages(False)


@pytest.mark.parametrize(
    "text",
    [
        f"Invariant violations: [\"Check or Invariant (pan > '0') violated by value in row: [{PAN}]\"]",
        f'Invalid JSON in log record: {{"stats": {{"minValues": {{"pan": "{PAN}"}}}}}}',
        f"Arrow error: Cast error: Cannot cast string '{PAN}' to value of Int64 type",
        f"Parser error: Error while parsing {PAN}",
        f"add action has partitionValues pan={PAN}",
        f"Could not convert '{PAN}' with type str: tried to convert to int64",
    ],
)
def test_a_message_about_rows_is_hidden_unless_the_setting_shows_it(text: str) -> None:
    told = describe_lake_error(ValueError(text), text)

    assert PAN not in told and told.startswith("ValueError; its message is hidden")
    show_error_messages(True)
    assert describe_lake_error(ValueError(text), text) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Generic S3 error:\n  403 Forbidden", "Generic S3 error: 403 Forbidden"),
        (
            "Metadata file is not there: No such file or directory",
            "Metadata file is not there: No such file or directory",
        ),
        (" \n", "ValueError"),
    ],
)
def test_other_messages_are_shown_on_one_line(text: str, told: str) -> None:
    assert describe_lake_error(ValueError(text), text) == told
