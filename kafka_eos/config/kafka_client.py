"""Kafka client settings as users write them: a mapping, JSON text, or a file; each value may be in a file too.

Rule: no error shows a value, which may be a secret. A value in a file stays there (``secrets.read_secret_files``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from kafka_eos._util.secrets import FROM_FILE, MaskedConfig, read_text


def parse_client_config(value: object) -> object:
    """Parse a client's settings: a mapping, JSON text, or @FILE.

    A nested mapping extends the name: ``{"sasl": {"username": "ada"}}`` is ``sasl.username``. The value of
    ``sasl.password.from_file`` is the path of the file that holds ``sasl.password``. It becomes absolute, because other
    processes of the job may run in another directory. Raises ValueError, without any value in it.
    """
    found = _parsed(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        return found
    pairs = list(_flat(found))
    if wrong := [name for name, value in pairs if not isinstance(value, str | int | float | bool | Path)]:
        raise ValueError(f"{wrong[0]} is neither text, nor a number, nor true or false")
    named = [name.removesuffix(FROM_FILE) for name, _ in pairs]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise ValueError(f"{twice} is given twice")
    return {name: _absolute(value) if name.endswith(FROM_FILE) else value for name, value in pairs}


KafkaConfig = Annotated[
    dict[str, str | int | float | bool] | None,
    BeforeValidator(parse_client_config),
    AfterValidator(lambda value: None if value is None else MaskedConfig(value)),
]


def _parsed(text: str) -> Mapping[str, Any]:
    if text.startswith("@"):
        return _properties(Path(text[1:]))
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError('write a JSON object, {"security.protocol": "SASL_SSL", …}, or @FILE with lines name=value')
    return found


def _properties(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in read_text(path).splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(f"{path} has a line that is not name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield full names. TOML parses unquoted names with dots as nested tables."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{rest}", inner) for rest, inner in _flat(value))
        else:
            yield name, value


def _absolute(path: object) -> str:
    if not isinstance(path, str | Path):
        raise ValueError(f"{FROM_FILE} does not name a file")
    return str(Path(path).absolute())
