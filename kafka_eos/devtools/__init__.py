"""Tools for trying the library: a local Kafka broker and the demo."""
