"""The Spark session of an audit, and the Kafka cluster that it reads."""
