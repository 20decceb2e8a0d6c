"""Schema registries: ``registry`` asks one, ``wire_format`` and ``header_ids`` are how records name a schema of it."""
