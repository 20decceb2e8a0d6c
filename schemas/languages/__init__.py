"""Kinds of schemas: Avro, Protobuf, JSON Schema. Each has what stands behind the id of a schema; see ``Language``."""
