"""The expected and the actual rows of a job as Spark tables."""
