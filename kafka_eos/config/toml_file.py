"""The settings file: ``kafka-eos.toml``, or ``[tool.kafka-eos]`` of ``pyproject.toml``.

Rule: this module finds and merges files; only ``settings`` knows the names and their meaning. A file is searched in the
working directory only, where ``.kafka-eos`` is too. Two files are an error, so none is ignored silently.
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
    """The settings of one file. ``path`` is None if there is no file; ``profile`` is the chosen one, or None."""

    path: Path | None = None
    common: Mapping[str, Any] = field(default_factory=dict, repr=False)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    profile: str | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """Return settings by name. A setting of the profile replaces the common one as a whole."""
        return {**self.common, **(self.profiles[self.profile] if self.profile is not None else {})}

    def location_of(self, name: str) -> str:
        """Name the file and profile that a setting comes from."""
        profile = self.profile
        if profile is None or name not in self.profiles[profile]:
            return str(self.path)
        return f"{self.path}, profile {profile}"

    def with_profile(self, name: str | None) -> ConfigFile:
        """Return the same file with another profile. ConfigError, which lists the profiles, if it does not exist."""
        if name is not None and name not in self.profiles:
            known = ", ".join(sorted(self.profiles))
            where = f"{self.path} has {f'only {known}' if known else 'no profiles'}"
            if self.path is None:
                where = f"no {NAME} exists here; {FILE_VARIABLE} names one in another location"
            raise ConfigError(f"profile {name!r} ({PROFILE_VARIABLE}) does not exist: {where}")
        return ConfigFile(self.path, self.common, self.profiles, name)


def read_config_file() -> ConfigFile:
    """Return the file and the profile that the environment names, else the file in the working directory, if any.

    Raises ConfigError if it cannot be read, if there are two, or if the profile does not exist.
    """
    named = os.environ.get(FILE_VARIABLE)
    found = _read(Path(named)) if named else _find_in_directory()
    return found.with_profile(os.environ.get(PROFILE_VARIABLE) or None)


def _find_in_directory() -> ConfigFile:
    own, project = Path(NAME), Path(_PYPROJECT)
    in_project = _tool(project) if project.is_file() else None
    if own.is_file():
        if in_project is not None:
            raise ConfigError(f"settings are in both {NAME} and [tool.{_TOOL}] of {_PYPROJECT}; keep one of them")
        return _read(own)
    return ConfigFile() if in_project is None else _build(project, in_project)


def _read(path: Path) -> ConfigFile:
    if path.name != _PYPROJECT:
        return _build(path, _toml(path))
    table = _tool(path)
    if table is None:
        raise ConfigError(f"{path} has no table [tool.{_TOOL}]")
    return _build(path, table)


def _tool(path: Path) -> Mapping[str, Any] | None:
    table = _toml(path).get("tool", {}).get(_TOOL)
    return table if table is None else _table(path, f"tool.{_TOOL}", table)


def _build(path: Path, table: Mapping[str, Any]) -> ConfigFile:
    profiles = _table(path, _PROFILES, table.get(_PROFILES, {}))
    return ConfigFile(
        path,
        {name: value for name, value in table.items() if name != _PROFILES},
        {name: _table(path, f"{_PROFILES}.{name}", values) for name, values in profiles.items()},
    )


def _table(path: Path, name: str, found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ConfigError(f"{name} in {path} is not a table; write [{name}], with its settings below")
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: byte {error.start} is not valid UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
