"""A real Apache Kafka on this machine, from Maven jars, for the demo, the tests and development. No Docker needed.

with Broker(Path("/tmp/kafka")) as broker:
    print(broker.bootstrap)
"""

from kafka_eos.devbroker.broker import Broker
from kafka_eos.devbroker.jars import fetch_jars

__all__ = ["Broker", "fetch_jars"]
