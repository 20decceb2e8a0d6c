"""Protobuf: ``message_codec`` for plain values, ``registry_language`` for a registry, ``proto_*`` for .proto files."""
