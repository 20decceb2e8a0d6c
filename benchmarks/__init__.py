"""Measures the product on this machine, beside a hand-written loop and, if wanted, beside another library.

Open ``run.py`` for throughput over Kafka and ``recovery.py`` for the time after a kill. What the barrier engine costs
is in ``abs_paper``, ``exchange``, ``backpressure``, ``alignment``, ``skew``, ``state_sizes`` and
``serializers``; ``spark.py`` measures Spark; ``command.py`` has what they share.
"""
