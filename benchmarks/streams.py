"""Kafka Streams, to be measured beside: its two jars, fetched once, and the command that runs a program of one file.

The rest of what it needs lies beside the jars of the broker. Java compiles the file when it starts, which is not
measured.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kafka_eos._util.jvm.jars import cache_dir, fetch_jars
from kafka_eos._util.jvm.java import find_java
from kafka_eos._util.jvm.maven import Artifact, fetch, repository

STREAMS: Final = "4.3.0"
_JARS: Final = (
    f"org.apache.kafka:kafka-streams:{STREAMS} aa3a70c72cb04c72eabcf6d04762c3a3ca8522e93654eca9180e7877172433c4",
    "org.rocksdb:rocksdbjni:10.1.3 e7f925287d9fe2574fb7c7a86f7facaa9b8ab602a2eed0e598bf633528121498",
)
"""Coordinates and SHA-256."""


def kafka_streams(program: Path) -> tuple[str, ...]:
    """The command that runs ``program``. Raises ConfigError if something it needs cannot be fetched."""
    home = cache_dir() / "jars" / "streams"
    home.mkdir(parents=True, exist_ok=True)
    wanted = [Artifact.parse(*jar.split()) for jar in _JARS]
    for jar in wanted:
        fetch(repository(), jar, home)
    jars = [*fetch_jars("broker"), *(home / jar.file for jar in wanted)]
    return (find_java(), "-Xmx1g", "-cp", os.pathsep.join(map(str, jars)), str(program))
