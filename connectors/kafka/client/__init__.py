"""Clients of a Kafka cluster: settings, connections, errors and retries."""
