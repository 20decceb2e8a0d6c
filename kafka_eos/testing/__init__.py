"""Tools for tests of pipelines and connectors: sources and sinks in memory, and the contracts all of them must keep.

    run_local       run a plan on lists, without a broker
    preview         the same, with the rows of every operator
    check_sink      run the contract test on your own sink
    check_source    run the contract test on your own source
    replay_fixture  replay an epoch of a job that kafka-eos replay has written as a test

Rule: nothing here is a mock. A source or sink in memory keeps the same contract as a real one.
"""

from kafka_eos.testing.check_sink import SINK_CHECKS, ContractBroken, SinkUnderTest, check_sink
from kafka_eos.testing.check_source import SOURCE_CHECKS, SourceUnderTest, check_source
from kafka_eos.testing.list_source import ListSource
from kafka_eos.testing.local_parts import LocalRun
from kafka_eos.testing.memory_sink import MemorySink
from kafka_eos.testing.preview import Preview, preview
from kafka_eos.testing.replay_fixture import replay_fixture
from kafka_eos.testing.run_local import AdvanceClock, TimestampedValue, run_local

__all__ = [
    "SINK_CHECKS",
    "SOURCE_CHECKS",
    "ContractBroken",
    "ListSource",
    "LocalRun",
    "MemorySink",
    "Preview",
    "SinkUnderTest",
    "SourceUnderTest",
    "TimestampedValue",
    "AdvanceClock",
    "check_sink",
    "check_source",
    "preview",
    "replay_fixture",
    "run_local",
]
