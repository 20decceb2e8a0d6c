"""Recompute of broadcast state: the rules that rows were joined with, as far as the ledger contains them."""
