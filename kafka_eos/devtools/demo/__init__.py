"""The promise, seen with one's own eyes: a real broker, a real job, real kills, and an audit at the end.

``kafka-eos demo`` is a thin door to ``run_demo``. Rule: every number that is shown was measured in this run, and
a planned fault that did not happen makes the result INVALID, never PASS.
"""

from kafka_eos.devtools.demo.course import run_demo
from kafka_eos.devtools.demo.directory import Options
from kafka_eos.devtools.demo.result import Result

__all__ = ["Options", "Result", "run_demo"]
