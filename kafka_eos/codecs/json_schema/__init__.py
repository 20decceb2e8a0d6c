"""JSON with schemas: ``language`` has the values, ``drafts`` and ``differences`` what schemas say."""
