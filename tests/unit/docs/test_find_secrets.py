"""The lint against secrets finds those of each form, and nothing in this repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("find_secrets", ROOT / "docs/find_secrets.py")
assert SPEC is not None
assert SPEC.loader is not None
lint = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lint)

# In two parts each, so that this file has no secret.
PLANTED = {
    "a private key": "-----BEGIN RSA PRIVATE" + " KEY-----",
    "an access key of AWS": "key=AKIA" + "IOSFODNN7EXAMPLE",
    "a token of GitHub": "ghp_" + "a1B2" * 9,
    "a token of GitLab": "glpat-" + "x9Yz" * 5,
    "a token of Slack": "https://hooks.slack.com" + "/services/T01/B02/" + "a1B2c3D4" * 3,
    "a key of Google": "AIza" + "a1B2c" * 7,
    "a token of PyPI": "pypi-" + "a1B2c" * 10,
    "a key of Azure": "AccountKey=" + "a1B2" * 20 + "==",
    "a JSON Web Token": "eyJhbGciOiJIUzI1" + ".eyJzdWIiOiIxMjM0." + "abcdefghijk",
}


@pytest.mark.parametrize("what", sorted(lint.FORMS))
def test_each_form_of_a_secret_is_found_with_its_line(what: str) -> None:
    assert list(lint.find_secrets(f"a\n  {PLANTED[what]}\n")) == [(2, what)]
    assert list(lint.find_secrets(f"{PLANTED[what]} # no secret: an example of the issuer")) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('sasl.password = "' + 'q8Zr2LxV0pTn5WcYhB7k"', True),
        ('{"api_key": "' + 'q8Zr2LxV0pTn5WcYhB7k"}', True),
        ('password = "correct-horse-battery-horse"', False),
        ('secret.from_file = "/etc/kafka-eos/secrets/oauth-client"', False),
        ('sha = "q8Zr2LxV0pTn5WcYhB7k"', False),
    ],
)
def test_a_random_text_behind_a_name_of_a_secret_is_found(line: str, found: bool) -> None:
    assert [what for _, what in lint.find_secrets(line)] == ["a random text"] * found


def test_this_repository_has_none() -> None:
    assert lint.main() == 0
