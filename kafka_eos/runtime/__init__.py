"""The runtime of a worker, for both engines: operators, state, exchanges, tasks, and the user's program."""
