"""New credentials for the connections of a run, with a certificate that signs itself."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kafka_eos.runtime.transport.credentials import Credentials

_SECRET_BYTES = 32
_BEGIN, _END = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""A certificate is as old as its run, however long that takes and whatever the clocks of machines show."""


def create_credentials() -> Credentials:
    """Create a secret and a certificate that no other run has."""
    return Credentials(os.urandom(_SECRET_BYTES), _create_certificate())


def _create_certificate() -> bytes:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a run")])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _BEGIN, _END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return signed.public_bytes(encoding) + private
