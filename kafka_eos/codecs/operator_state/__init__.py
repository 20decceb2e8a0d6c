"""Operator state."""
