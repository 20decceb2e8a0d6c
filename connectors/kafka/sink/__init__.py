"""The Kafka sink: transactional producers, pre-commit and commit of an epoch."""
