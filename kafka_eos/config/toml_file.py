"""The file that settings may stand in: ``kafka-eos.toml``, or ``[tool.kafka-eos]`` of ``pyproject.toml``.

Rule: it finds and merges. What the names mean, and which there are, only ``settings`` knows. A file is looked for in
the working directory alone, where ``.kafka-eos`` is, too; of two files none is passed over silently.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_eos.core.errors import ConfigError

NAME = "kafka-eos.toml"
FILE_VARIABLE, PROFILE_VARIABLE = "KAFKA_EOS_CONFIG_FILE", "KAFKA_EOS_PROFILE"
_PYPROJECT, _TOOL, _PROFILES = "pyproject.toml", "kafka-eos", "profiles"


@dataclass(frozen=True)
class ConfigFile:
    """What one file gives. ``path``: None if there is no file; ``profile``: the chosen one, None for none."""

    path: Path | None = None
    common: Mapping[str, Any] = field(default_factory=dict, repr=False)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    profile: str | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """Settings by name. One of the profile replaces the common one as a whole."""
        return {**self.common, **(self.profiles[self.profile] if self.profile is not None else {})}

    def place(self, name: str) -> str:
        """Where a setting of ``values`` stands, for messages."""
        profile = self.profile
        if profile is None or name not in self.profiles[profile]:
            return str(self.path)
        return f"{self.path}, profile {profile}"

    def with_profile(self, name: str | None) -> ConfigFile:
        """The same file with another profile. ConfigError, with those that there are, if it has none of that name."""
        if name is not None and name not in self.profiles:
            known = ", ".join(sorted(self.profiles))
            where = f"{self.path} has {f'only {known}' if known else 'no profiles'}"
            if self.path is None:
                where = f"there is no {NAME} here; {FILE_VARIABLE} names one that is elsewhere"
            raise ConfigError(f"there is no profile {name!r} ({PROFILE_VARIABLE}): {where}")
        return ConfigFile(self.path, self.common, self.profiles, name)


def read_config_file() -> ConfigFile:
    """The file and the profile that the environment names, else the file in the working directory, if there is one.

    ConfigError if it cannot be read, if there are two, or if the profile is not there.
    """
    named = os.environ.get(FILE_VARIABLE)
    found = _read(Path(named)) if named else _here()
    return found.with_profile(os.environ.get(PROFILE_VARIABLE) or None)


def _here() -> ConfigFile:
    own, project = Path(NAME), Path(_PYPROJECT)
    in_project = _tool(project) if project.is_file() else None
    if own.is_file():
        if in_project is not None:
            raise ConfigError(f"settings stand in {NAME} and in [tool.{_TOOL}] of {_PYPROJECT}; keep one of them")
        return _read(own)
    return ConfigFile() if in_project is None else _made(project, in_project)


def _read(path: Path) -> ConfigFile:
    if path.name != _PYPROJECT:
        return _made(path, _toml(path))
    table = _tool(path)
    if table is None:
        raise ConfigError(f"{path} has no table [tool.{_TOOL}]")
    return _made(path, table)


def _tool(path: Path) -> Mapping[str, Any] | None:
    table = _toml(path).get("tool", {}).get(_TOOL)
    return table if table is None else _table(path, f"tool.{_TOOL}", table)


def _made(path: Path, table: Mapping[str, Any]) -> ConfigFile:
    profiles = _table(path, _PROFILES, table.get(_PROFILES, {}))
    return ConfigFile(
        path,
        {name: value for name, value in table.items() if name != _PROFILES},
        {name: _table(path, f"{_PROFILES}.{name}", values) for name, values in profiles.items()},
    )


def _table(path: Path, name: str, found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ConfigError(f"{name} in {path} is no table; write [{name}], and its settings below")
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: it is no UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
