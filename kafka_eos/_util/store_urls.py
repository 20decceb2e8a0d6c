"""Addresses of stores, as users write them: ``scheme://bucket/prefix?option=value``.

Rule: an address is printed, logged and put into reports, so there must be no secret in it.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from kafka_eos._util.secrets import sounds_secret

_SECRETS = ("sas", "access_key", "customer_key")
"""Of stores alone, besides what ``secrets`` knows."""


def options(address: str) -> dict[str, str]:
    """What is behind the question mark."""
    return dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))


def expect_no_secret(address: str) -> None:
    """ValueError, without the address, if there is a password or the name of a secret in it."""
    found = [name for name in options(address) if _is_secret(name)]
    if urlsplit(address).password is not None:
        found = ["a password"]
    if found:
        raise ValueError(f"{found[0]} does not belong in an address, which is logged: give it as the environment "
                         "variable that the store's own client reads")  # fmt: skip


def _is_secret(name: str) -> bool:
    return sounds_secret(name) or any(word in name.lower() for word in _SECRETS)
