"""The protocol as pure functions: events in, decisions and actions out. No clock, thread, disk, Kafka or Spark."""
