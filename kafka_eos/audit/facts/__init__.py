"""The inputs of an audit: the job's plan, its ledger, its positions, and ranges of offsets."""
