"""Spark sessions: open one, or take and check one that the user brought.

Rule: what would break the guarantee, or cannot work, is a ConfigError before anything is read, with what to change.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_eos import __version__
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.package import ROOT
from kafka_eos.plan.worker_memory import WorkerMemory
from kafka_eos.spark.live_session import (
    OF_OUR_OWN,
    has_active_session,
    is_submitted,
    submitted_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
_OLDEST = (4, 1)
"""Spark's oldest supported version."""
_JAVA = 17


@contextmanager
def open_engine_session(given: SparkSession | None, master: str | None, name: str) -> Iterator[SparkSession]:
    """Yield the user's session, or a new one that is stopped at the end.

    ``master`` None takes the master of spark-submit, else ``DEFAULT_MASTER``. Raise ConfigError if Java is missing, or
    if another session exists: Spark allows one per process.
    """
    others = given or _running(master)
    if others is not None:
        yield others
        return
    own = _opened(master, name)
    try:
        yield own
    finally:
        own.stop()


def _running(master: str | None) -> SparkSession | None:
    """Return the session that a submitted program has opened, or None if this process has none."""
    if not has_active_session():
        return None
    if master is None and (submitted := submitted_session()) is not None:
        return submitted
    raise ConfigError(
        "this program already has a Spark session, and Spark allows one per process. Pass it: SparkEngine(session) "
        "uses it and leaves it open. Or stop it first with session.stop()."
    )


def _opened(master: str | None, name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from kafka_eos.spark import spark_errors as failures

    builder = SparkSession.builder.appName(f"kafka-eos {name}")
    if not is_submitted():
        _require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        for key, value in _defaults(master or DEFAULT_MASTER).items():
            builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    try:
        return builder.getOrCreate()
    except failures.SPARKS as error:
        raise failures.explain_start_failure(error, master or _default_master()) from error


def _default_master() -> str:
    return "what was submitted" if is_submitted() else DEFAULT_MASTER


def _defaults(master: str) -> dict[str, str]:
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    defaults = {
        "spark.master": master,
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": path,
        "spark.log.level": "ERROR",
        **OF_OUR_OWN,
    }
    if master.startswith("local"):
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return defaults


def check(session: SparkSession) -> None:
    """Raise ConfigError if neither the engine nor a query's batches can be exactly-once in this session."""
    if not hasattr(session, "_jsc"):
        raise ConfigError(
            "this is a Spark Connect session, whose driver is elsewhere. A classic session is needed: create it with "
            ".master(…) and without .remote(…), and without SPARK_REMOTE and SPARK_CONNECT_MODE_ENABLED."
        )
    refuse_unsafe(session.sparkContext.getConf().get)
    version = tuple(int(part) for part in session.version.split(".")[:2])
    import pyspark

    if version < _OLDEST:
        raise ConfigError(f"Spark {session.version} is too old: kafka-eos needs {'.'.join(map(str, _OLDEST))} or newer")
    if session.version.split("-")[0] != pyspark.__version__.split("-")[0].replace(".dev0", ""):
        raise ConfigError(
            f"the cluster runs Spark {session.version}, but this program uses pyspark {pyspark.__version__}: pip "
            f"install 'pyspark=={session.version}', the same on driver and executors"
        )


def check_python(session: SparkSession) -> None:
    """Raise ConfigError unless the Python of the tasks has this package in this version. Starts one small Spark job."""
    from kafka_eos.spark import spark_errors as failures

    context = session.sparkContext
    both = f"tasks run {context.pythonExec!r} (PYSPARK_PYTHON), this program {sys.executable!r}"
    try:
        ((python, version, missing),) = context.parallelize(range(1), 1).map(_look()).collect()
    except failures.SPARKS as error:
        advice = failures.advise_on_setup(error)
        if advice is None:
            raise failures.translate_error(error) from error
        raise ConfigError(f"{both}: {advice}") from error
    if version != __version__:
        there = f"has kafka-eos {version}, not {__version__}" if version else f"cannot import kafka_eos ({missing})"
        raise ConfigError(
            f"{both}, and {python} {there}: set PYSPARK_PYTHON={sys.executable} before Spark starts, or install "
            f"kafka-eos {__version__} for the tasks' Python."
        )


def _look() -> Callable[[object], tuple[str, str, str]]:
    """Return a function that reports a task's Python: its path, its version of this package or "", and an import error.

    The inner function is pickled by value, so a task can run it even where this package is missing.
    """

    def look(_: object) -> tuple[str, str, str]:
        import sys

        try:
            import kafka_eos.runtime.worker.worker  # with all that they need: the source alone may be on the path
            import kafka_eos.spark.worker_task
        except ImportError as error:
            return sys.executable, "", str(error)
        return sys.executable, kafka_eos.__version__, ""

    return look


def wait_for_cores(session: SparkSession) -> int:
    """Return the cores of the cluster once its executors have registered.

    Spark reports 2 before the first executor has registered. A job must have run before, so that at least one exists.
    """
    context = session.sparkContext
    found, since = context.defaultParallelism, time.monotonic()
    given = context.getConf().contains("spark.default.parallelism") or (context.master or "").startswith("local")
    end = since if given else since + _REGISTERED_WITHIN
    while time.monotonic() < min(end, since + _QUIET):
        time.sleep(0.1)
        now = context.defaultParallelism
        if now != found:
            found, since = now, time.monotonic()
    return found


_QUIET, _REGISTERED_WITHIN = 2.0, 30.0
"""Seconds without a new executor after which the cluster counts as complete, and after which it does in any case."""


def refuse_unsafe(setting: Callable[[str], str | None]) -> None:
    """Raise ConfigError if a setting of the cluster would break the guarantee."""
    if (setting("spark.speculation") or "false").lower() == "true":
        raise ConfigError(
            "spark.speculation=true: two attempts of a task would run in parallel, each with an open transaction of "
            "its own in the output, which hides later records of other producers. Set spark.speculation=false."
        )


def refuse_idle_timeout(setting: Callable[[str], str | None]) -> None:
    """Raise ConfigError if Spark would kill the Python worker of each task that returns nothing for a while."""
    if int(setting(_IDLE_SECONDS) or 0) and (setting(_KILL_IDLE) or "false").lower() == "true":
        raise ConfigError(
            f"{_KILL_IDLE}=true: Spark would kill each worker of the job {setting(_IDLE_SECONDS)} s after its start, "
            f"because its task returns nothing until the job ends. Set {_KILL_IDLE}=false."
        )


def refuse_small_address_space(setting: Callable[[str], str | None], worker: WorkerMemory) -> None:
    """Raise ConfigError if Spark would limit the address space of a worker to less than it needs."""
    given = setting(_ADDRESS_SPACE)
    if given is None:
        return
    limit = _parse_size(_ADDRESS_SPACE, given) // int(setting("spark.executor.cores") or 1)
    needed = _CODE_AND_STACKS + worker.buffers
    if limit < needed:
        raise ConfigError(
            f"{_ADDRESS_SPACE}={given} limits the address space of each worker to {limit >> 20} MiB, and a worker "
            f"of this job needs {needed >> 20} MiB: code, stacks of threads and memory that is reserved count, too. "
            "Leave it unset, and set spark.executor.memoryOverhead to the memory of the workers."
        )


def find_memory_shortage(setting: Callable[[str], str | None], master: str, worker: WorkerMemory) -> str:
    """Return what an executor's container lacks for the memory of its workers; "" if it is enough.

    Only YARN and Kubernetes limit the memory of an executor with its processes.
    """
    if not master.startswith(("yarn", "k8s://")):
        return ""
    heap, given = _parse_size(_HEAP, setting(_HEAP) or "1g"), setting(_OVERHEAD)
    factor = float(setting(f"{_OVERHEAD}Factor") or 0.1)
    overhead = _parse_size(_OVERHEAD, given) if given else max(int(heap * factor), _JVM_OVERHEAD)
    workers = max(1, int(setting("spark.executor.cores") or 1) // int(setting("spark.task.cpus") or 1))
    needed = workers * worker.needed + _JVM_OVERHEAD
    if overhead >= needed:
        return ""
    return (
        f"{_OVERHEAD} is {overhead >> 20} MiB, and the {workers} workers of an executor may take "
        f"{workers * worker.needed >> 20} MiB: an executor that exceeds its memory is killed. Set {_OVERHEAD}="
        f"{needed >> 20}m, or lower state_memory, kafka_memory or exchange_memory"
    )


def _parse_size(name: str, text: str) -> int:
    """Return the bytes of a size in Spark's form, in which the default unit is MiB."""
    found = re.fullmatch(r"(\d+)\s*([kmgtp]?)b?", text.strip().lower())
    if found is None:
        raise ConfigError(f"{name}={text}: Spark accepts sizes such as 4g")
    return int(found[1]) << 10 * ("kmgtp".index(found[2] or "m") + 1)


_IDLE_SECONDS, _KILL_IDLE = "spark.python.worker.idleTimeoutSeconds", "spark.python.worker.killOnIdleTimeout"
_ADDRESS_SPACE = "spark.executor.pyspark.memory"
_HEAP, _OVERHEAD = "spark.executor.memory", "spark.executor.memoryOverhead"
_JVM_OVERHEAD = 384 << 20
"""Memory of an executor outside its heap and its workers: Spark's own least overhead."""
_CODE_AND_STACKS = 2 << 30
"""Address space of a worker without its buffers: 1.6 GB were measured with Kafka's client and 36 threads."""
_CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum"


def refuse_mixed_attempts(setting: Callable[[str], str | None]) -> None:
    """Raise ConfigError unless Spark detects that a stage that ran again had another result.

    ``setting`` reads a setting of the session. A Structured Streaming query relies on Spark for this; the engine has no
    stages.
    """
    for name in (f"{_CHECKSUMS}.enabled", f"{_CHECKSUMS}.enableFullRetryOnMismatch"):
        if (setting(name) or "false").lower() != "true":
            raise ConfigError(
                f"{name}=false: after the loss of an executor a stage may run again with other results (user code "
                "need not be deterministic). Tasks that read the first results would then be committed with tasks "
                f"that read the second. Set {name}=true."
            )


def _require_java() -> None:
    """Raise ConfigError for a missing or old Java, for which pyspark's own message is a stack trace."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs Java {_JAVA} or newer, and none was found (JAVA_HOME={home or 'unset'})")
    version_output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', version_output)
    if found is None or int(found[1]) < _JAVA:
        raise ConfigError(
            f"Spark needs Java {_JAVA} or newer; {java} reports: {version_output.strip().splitlines()[:1]}"
        )
