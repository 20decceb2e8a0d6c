"""Avro: ``avro_codec`` for state, ``registry_language`` for a registry, ``foreign_schemas`` for data of other
programs."""
