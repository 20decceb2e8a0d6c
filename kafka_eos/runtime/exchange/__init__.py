"""Exchanges: routing of rows between subtasks, and their encoding. Both engines use it."""
