"""A real Apache Kafka on this machine, from Maven jars, for the demo, the tests and development. No Docker needed.

with Broker(Path("/tmp/kafka")) as broker:
    print(broker.bootstrap)
"""

from kafka_eos._util.jvm.jars import fetch_jars
from kafka_eos.devtools.broker.broker import Broker

__all__ = ["Broker", "fetch_jars"]
