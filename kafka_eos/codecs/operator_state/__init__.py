"""Codecs of the values that operators keep in their state."""
