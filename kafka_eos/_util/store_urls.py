"""Addresses of object stores, as users write them: ``scheme://bucket/prefix?option=value``.

Rule: an address is printed, logged and included in reports, so it must not contain a secret.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from kafka_eos._util.secrets import is_secret_name

_SECRETS = ("sas", "access_key", "customer_key")
"""Names of secrets that only stores use, in addition to those of ``secrets``."""


def parse_options(address: str) -> dict[str, str]:
    """Parse the options behind the question mark."""
    return dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))


def ensure_no_secret(address: str) -> None:
    """Raise ValueError if the address holds a password or a secret option."""
    found = [name for name in parse_options(address) if _is_secret(name)]
    if urlsplit(address).password is not None:
        found = ["a password"]
    if found:
        raise ValueError(f"{found[0]} does not belong in an address, which is logged: give it as the environment "
                         "variable that the store's own client reads")  # fmt: skip


def _is_secret(name: str) -> bool:
    return is_secret_name(name) or any(word in name.lower() for word in _SECRETS)
