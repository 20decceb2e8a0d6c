"""The sink for Structured Streaming: any query's output to Kafka exactly once, with Spark's commits as the decision.

Users import it from ``kafka_eos.spark``. Rule: tasks prepare, Spark decides, the finaliser ends. None of the three
does another's part.
"""
