"""The Kafka sink: transactional producers, and the pre-commit and commit of an epoch."""
