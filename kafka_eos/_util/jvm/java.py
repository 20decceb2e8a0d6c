"""Finds a Java that can run Kafka and Spark.

Rule: the error for a missing or old Java is one sentence that says what to install and where it was searched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache

from kafka_eos.core.errors import ConfigError

MINIMUM_MAJOR = 17


def find_java() -> str:
    """Return the path of a Java 17 or newer: ``$JAVA_HOME/bin/java`` if JAVA_HOME is set, else ``java`` on the PATH.

    Raises ConfigError if there is none, or if it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    looked = f"JAVA_HOME={home}" if home else "the PATH"
    path = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if path is None:
        raise ConfigError(
            f"no java found in {looked}. Kafka and Spark need Java {MINIMUM_MAJOR} or newer: install one "
            "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless) and put it on the PATH or set JAVA_HOME."
        )
    major = _major_version(path)
    if major < MINIMUM_MAJOR:
        raise ConfigError(
            f"{path} (from {looked}) is Java {major}; Kafka and Spark need Java {MINIMUM_MAJOR} or newer. "
            "Install a newer one and put it first on the PATH or set JAVA_HOME to it."
        )
    return path


@lru_cache
def _major_version(path: str) -> int:
    answer = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if match is None:
        raise ConfigError(f"`{path} -version` reported no version; its output: {answer.stderr.strip()[:200]!r}")
    return int(match[1])
