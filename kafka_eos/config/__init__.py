"""Settings and their precedence: defaults, the TOML file, environment variables, and Kafka client settings."""
