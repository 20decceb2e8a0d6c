"""The embedded engine: a supervisor process, worker processes, checkpoints by barriers. No cluster.

``run`` is what starts one. Rule: nothing is imported here, since a worker, which is started anew after each failure,
needs neither the supervisor nor the coordinator.
"""
