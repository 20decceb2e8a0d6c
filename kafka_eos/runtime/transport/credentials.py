"""The credentials of the connections of one run: the secret of its handshakes, and a certificate for TLS.

Rule: both ends present the same certificate and trust no other. So TLS proves the same as the handshake: that the other
end was started by this run. Keys of a connection are its own: who records it and learns the certificate's key later
reads nothing.
"""

from __future__ import annotations

import os
import ssl

import msgspec

from kafka_eos._util.memory_files import open_memory_file


class Credentials(msgspec.Struct, frozen=True):
    """Secrets of one run, which only its own processes know."""

    secret: bytes
    certificate: bytes
    """A certificate and its key as PEM."""

    def make_server_tls(self) -> ssl.SSLContext:
        """Return the TLS settings of a listener."""
        return self._make_tls(ssl.PROTOCOL_TLS_SERVER)

    def make_client_tls(self) -> ssl.SSLContext:
        """Return the TLS settings of a dialer."""
        return self._make_tls(ssl.PROTOCOL_TLS_CLIENT)

    def _make_tls(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate itself is trusted, at whatever address
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate.decode())
        file = open_memory_file(self.certificate)  # the ssl module reads keys from files only
        try:
            context.load_cert_chain(f"/dev/fd/{file}")
        finally:
            os.close(file)
        return context
