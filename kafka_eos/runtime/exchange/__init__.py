"""Rows that change subtasks: who gets them, and how they are written on the way. Both engines use it."""
