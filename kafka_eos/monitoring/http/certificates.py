"""The TLS certificate of the HTTP server. Its files are read again when they change, for the next connection.

Rule: files that cannot be used never replace a certificate that is in use.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.http.file_versions import FileVersion, find_file_version

_LOG: Final = logging.getLogger("kafka_eos.http")


class Certificate:
    """A certificate with its chain, and its private key, in PEM files. ``key``: None if it is in the same file."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Raises ConfigError if the files are not usable."""
        self._certificate, self._key = certificate, key
        self._version = self._find_version()
        try:
            self._context = self._load()
        except OSError as error:
            raise ConfigError(
                f"http_certificate={certificate}, http_key={key or 'in the same file'}: {error}. Give a certificate "
                "with its chain and its private key, both in PEM and without a password"
            ) from error

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        if (version := self._find_version()) != self._version:
            self._version = version
            try:
                self._context = self._load()
            except OSError as error:
                _LOG.error("%s cannot be used: %s. The previous certificate stays in use", self._certificate, error)
        return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key, password=_refuse_password)
        return context

    def _find_version(self) -> tuple[FileVersion, ...]:
        return tuple(find_file_version(file) for file in (self._certificate, self._key) if file is not None)


def _refuse_password() -> str:
    raise OSError("the private key is encrypted")
