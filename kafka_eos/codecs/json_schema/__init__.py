"""JSON with schemas: ``registry_language`` for values, ``draft_07`` and ``differences`` for schemas."""
