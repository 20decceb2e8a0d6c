"""A Spark session of the tests that was interrupted is replaced: later tests would take the answers of other calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

INTERRUPTED = """
import signal, threading
from tests.spark_sessions import SparkSessions

class TimeLimit(BaseException):
    "As pytest's own: no Exception."

def end(*_):
    raise TimeLimit

sessions = SparkSessions({"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
first = sessions.live()
assert sessions.live() is first
signal.signal(signal.SIGUSR1, end)
threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)).start()
try:
    first._jvm.java.lang.Thread.sleep(2000)
    raise AssertionError("it was not interrupted")
except TimeLimit as error:
    shown = error  # pytest keeps what it shows, and with it the connection
second = sessions.live()
assert second is not first
assert second.range(3).collect()[2].id == 2
sessions.close()
print("replaced")
"""


@pytest.mark.campaign
def test_a_session_that_was_interrupted_is_replaced_with_its_jvm() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip

    assert "replaced" in done.stdout, done.stdout + done.stderr
