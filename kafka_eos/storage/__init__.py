"""The durable objects of a job: their names, formats, storages and retention."""
