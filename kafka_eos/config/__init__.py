"""Settings: defaults, the TOML file, environment variables, and settings of Kafka clients, with one precedence."""
