"""Certificates for brokers and clients of tests, by the tool that comes with Java."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kafka_eos.devbroker.java import find_java


def certificate(directory: Path, password: str, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """A key store of Java for the broker at 127.0.0.1, under ``name``, and the certificate that its clients trust."""
    store, authority = directory / "broker.p12", directory / "authority.pem"
    tool = [str(Path(find_java()).with_name("keytool")), "-keystore", str(store), "-storepass", password]
    made = ["-genkeypair", "-alias", "broker", "-keyalg", "RSA", "-storetype", "PKCS12", "-dname", f"CN={name}"]
    subject = f"SAN=ip:{name}" if name == "127.0.0.1" else f"SAN=dns:{name}"
    subprocess.run([*tool, *made, "-ext", subject], check=True, capture_output=True)
    subprocess.run([*tool, "-exportcert", "-rfc", "-alias", "broker", "-file", str(authority)], check=True)
    return store, authority
