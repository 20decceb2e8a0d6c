"""Everything that a worker runs, on either engine: operators, state, exchanges, tasks, and the user's program."""
