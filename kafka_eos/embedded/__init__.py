"""The embedded engine: a supervisor process, worker processes, checkpoints by barriers. No cluster.

``supervisor.run`` starts a job. Rule: this package imports nothing, because a worker, which restarts after each
failure, needs neither the supervisor nor the coordinator.
"""
