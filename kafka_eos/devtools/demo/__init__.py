"""The demo: a crash test of a pipeline that writes orders into three systems."""

from kafka_eos.devtools.demo.demo import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo"]
