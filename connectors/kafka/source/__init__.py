"""The Kafka source: partition discovery, reading, and offsets as positions."""
