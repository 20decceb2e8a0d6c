"""What a JVM that runs Spark for a test is told: to live briefly, and to begin with the classes that another one kept.

Rule: it is one archive for all of them, that of the audit. Only a session that ends by itself writes it.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from kafka_eos._util.jvm.class_cache import find_archive_options
from kafka_eos._util.jvm.java import find_java

_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""With the first compiler alone Java reserves 48 MB for compiled code. Spark fills them in a long session: from then on
Java throws code away and compiles it again."""
_WHOLE_HEAP = "-XX:MetaspaceSize=256m -Xms1g -Xmn384m"
"""A heap that grows with what is needed is collected as a whole each time; so is the space for classes."""
_SPARK = str(Path(pyspark.__file__).parent)


def of_session() -> str:
    """For the session of a test process."""
    return " ".join((_SHORT_LIVED, _WHOLE_HEAP, *find_archive_options(find_java(), _SPARK).read_write))


def of_driver() -> str:
    """For the session of a driver that is killed."""
    return " ".join((_SHORT_LIVED, _WHOLE_HEAP, *find_archive_options(find_java(), _SPARK).read_only))


def of_any() -> str:
    """For each process of a job: its driver, its executors and the cluster itself."""
    return " ".join((_SHORT_LIVED, *find_archive_options(find_java(), _SPARK).read_only))
