"""Broadcast state computed again: which rules rows have met, as far as the ledger tells it."""
