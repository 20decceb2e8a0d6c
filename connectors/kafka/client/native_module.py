"""The optional module ``kafka_eos_native``: batches of records through the librdkafka that confluent_kafka has loaded.

Rule: it is used if it can be imported, has this interface, and librdkafka accepts plugins. Otherwise records are read
as confluent_kafka's objects and written by a call for each, and the reason can be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kafka_eos.connectors.kafka.client.librdkafka import LIBRARY

INTERFACE: Final = 2
"""The number of the interface between the module and this connector."""
_PLUGINS: Final = "plugin.library.paths"


@dataclass(frozen=True, slots=True)
class NativeModule:
    """The module, or None with the reason why it is not used."""

    module: Any
    reason: str = ""

    def describe(self) -> str:
        """Return how Kafka records are read and written, in one line."""
        if self.module is None:
            return f"Kafka records are read and written one by one by confluent-kafka: {self.reason}"
        return "Kafka records are read and written in batches by kafka-eos-native"

    def add_plugin(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a client that the module can see; plugins of the user stay."""
        others = [path for path in str(config.get(_PLUGINS) or "").split(";") if path]
        return {**config, _PLUGINS: ";".join([*others, self.module.__file__])}


@cache
def load_native_module() -> NativeModule:
    """Import the module and connect it to librdkafka, once in a process."""
    try:
        import kafka_eos_native
    except ModuleNotFoundError:
        return NativeModule(None, "kafka-eos-native is not installed (pip install 'kafka-eos[native]')")
    except ImportError as error:
        return NativeModule(None, f"kafka-eos-native cannot be loaded ({error})")
    module: Any = kafka_eos_native
    found = getattr(module, "INTERFACE", None)
    if found != INTERFACE:
        return NativeModule(None, f"kafka-eos-native has interface {found}, and this kafka-eos needs {INTERFACE}")
    try:
        module.load(LIBRARY)
    except ImportError as error:
        return NativeModule(None, f"kafka-eos-native does not find librdkafka ({error})")
    if ";" in module.__file__:
        return NativeModule(None, f"librdkafka cannot load a plugin from {module.__file__}, which has a semicolon")
    if "plugins" not in module.features().split(","):
        return NativeModule(None, "this librdkafka accepts no plugins (builtin.features)")
    return NativeModule(module)
