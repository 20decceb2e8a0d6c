"""Helpers that several connectors share. Not part of the public API."""
