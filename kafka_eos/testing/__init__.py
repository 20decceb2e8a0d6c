"""What tests of pipelines and connectors need: sources and sinks in memory, and the contracts all of them must keep.

    run_local     run a plan on lists, without a broker
    check_sink    run the contract test on your own sink
    check_source  run the contract test on your own source

Rule: nothing here is a mock. A source or sink in memory keeps the same contract as a real one.
"""

from kafka_eos.testing.contract import SINK_CHECKS, ContractBroken, SinkUnderTest, check_sink
from kafka_eos.testing.local import LocalRun, Timed, Wait, run_local
from kafka_eos.testing.sinks import MemorySink
from kafka_eos.testing.source_contract import SOURCE_CHECKS, SourceUnderTest, check_source
from kafka_eos.testing.sources import ListSource

__all__ = [
    "SINK_CHECKS",
    "SOURCE_CHECKS",
    "ContractBroken",
    "ListSource",
    "LocalRun",
    "MemorySink",
    "SinkUnderTest",
    "SourceUnderTest",
    "Timed",
    "Wait",
    "check_sink",
    "check_source",
    "run_local",
]
