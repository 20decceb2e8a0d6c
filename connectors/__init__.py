"""Sources and sinks, one system a module. Import them as ``kafka_eos.connectors.<name>``."""
