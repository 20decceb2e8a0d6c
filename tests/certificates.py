"""Certificates for brokers and clients of tests: an authority of the test, and what it has signed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""What Python 3.13 demands of an authority."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key as PEM, and both in one file as Java reads them from ``ssl.keystore.type=PEM``."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates, also such as are over. Its own lies in ``certificate``."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._key = directory, ec.generate_private_key(ec.SECP256R1())
        self._name = _named("the authority of a test")
        self.certificate = directory / "authority.pem"
        now = datetime.now(UTC)
        signed = (
            _began(self._name, self._name, self._key, now - 30 * _DAY, now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, ends: timedelta = 30 * _DAY) -> Pair:
        """For ``name``, and for whoever is at 127.0.0.1. ``ends``: from now; negative: it ended so long ago."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        signed = (
            _began(_named(name), self._name, key, now - 20 * _DAY, now + ends)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(*(self._directory / f"{name}-{ends.days}.{kind}" for kind in ("pem", "key", "both")))
        certificate = signed.public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pair.certificate.write_bytes(certificate)
        pair.key.write_bytes(private)
        pair.both.write_bytes(private + certificate)
        return pair


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _began(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
