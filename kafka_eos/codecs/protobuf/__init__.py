"""Protobuf: ``messages`` has values alone, ``language`` those with a registry, ``text`` and ``parsing`` the files."""
