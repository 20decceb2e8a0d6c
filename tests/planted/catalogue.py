"""All bugs by name."""

from tests.planted import bugs, worker_bugs
from tests.planted.planting import BUGS

__all__ = ["BUGS", "bugs", "worker_bugs"]
