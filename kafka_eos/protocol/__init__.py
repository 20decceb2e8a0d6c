"""The protocol as pure decisions: facts in, decision out. No clock, thread, disk, Kafka or Spark here."""
