"""Schema registries: ``registry_client`` calls one; ``wire_format`` and ``header_ids`` encode schema ids in records."""
