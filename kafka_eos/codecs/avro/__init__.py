"""Avro: ``codec`` has values of a type, ``language`` those with a registry, ``foreign`` what others wrote."""
