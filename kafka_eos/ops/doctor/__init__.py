"""Checks of a job's environment, before it starts or while it runs."""
