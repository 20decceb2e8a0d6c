"""What is wrong, or will be, with where a job runs: looked at before it starts, or beside it."""
