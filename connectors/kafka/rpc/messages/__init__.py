"""Requests and their responses, by subject; see ``request``."""
