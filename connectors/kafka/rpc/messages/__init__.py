"""Requests and their answers, by topic; see ``request``."""
