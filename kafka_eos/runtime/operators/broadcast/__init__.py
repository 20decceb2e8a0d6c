"""Functions of a stream and of what is broadcast to all subtasks."""
