"""What is missing is named by its extra, wherever it is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from kafka_eos.core.errors import ConfigError
try:
    __import__(sys.argv[2])
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(("module", "connector"), [("psycopg", "postgres"), ("httpx2", "http")])
def test_a_connector_that_is_not_installed_names_the_command_that_installs_it(module: str, connector: str) -> None:
    command = [sys.executable, "-c", WITHOUT, module, f"kafka_eos.connectors.{connector}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"needs {module}: pip install 'kafka-eos[{connector}]'" in done.stdout
