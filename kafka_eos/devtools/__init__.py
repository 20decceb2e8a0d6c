"""Devtools."""
