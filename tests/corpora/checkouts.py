"""Checkouts of public repositories with files to try, in the cache directory: at one commit each, never in this one."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from kafka_eos._util.jvm.jars import cache_dir

_MINUTES = 10


@dataclass(frozen=True, slots=True)
class Corpus:
    """A repository on GitHub, the commit whose files are tried, and the directories with these."""

    repository: str
    commit: str
    directories: tuple[str, ...]

    def check_out(self) -> Path:
        """Return the directory of the files, which are fetched if they are missing.

        Raises OSError with git's message if the repository cannot be fetched.
        """
        home = cache_dir() / "corpora" / self.repository.replace("/", "-") / self.commit[:12]
        complete = home / ".complete"
        if not complete.exists():
            home.mkdir(parents=True, exist_ok=True)
            _git(home, "init", "--quiet")
            _git(home, "fetch", "--quiet", "--depth=1", f"https://github.com/{self.repository}", self.commit)
            _git(home, "checkout", "--quiet", "FETCH_HEAD", "--", *self.directories)
            complete.touch()
        return home


def _git(home: Path, *arguments: str) -> None:
    try:
        subprocess.run(["git", *arguments], cwd=home, check=True, capture_output=True, text=True, timeout=60 * _MINUTES)
    except subprocess.CalledProcessError as error:
        raise OSError(" ".join(error.stderr.split())[:300]) from None
    except subprocess.TimeoutExpired:
        raise OSError(f"git {arguments[0]} was not done after {_MINUTES} minutes") from None
