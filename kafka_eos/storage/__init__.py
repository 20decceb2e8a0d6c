"""Durable objects of a job: their names, their format, where they are kept, and when they may go."""
