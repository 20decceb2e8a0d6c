"""The demo: a real broker, a real job, real kills, and an audit at the end.

``kafka-eos demo`` only calls ``run_demo``. Rule: every number that is shown was measured in this run, and a planned
fault that did not happen makes the result INCONCLUSIVE, never PASS.
"""

from kafka_eos.devtools.demo.course import run_demo
from kafka_eos.devtools.demo.directory import Options
from kafka_eos.devtools.demo.result import DemoResult

__all__ = ["Options", "DemoResult", "run_demo"]
