"""Certificates of the tests, for the loopback address."""

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK: Final = "127.0.0.1"


def made_certificate(folder: Path, name: str, password: str = "") -> tuple[str, str]:
    """Certificate and key, PEM, for the loopback address; signed by itself, and written to a folder as NAME.pem and NAME.key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    day = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(day - dt.timedelta(days=1))
        .not_valid_after(day + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        lock = serialization.BestAvailableEncryption(password.encode())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    public = made.public_bytes(serialization.Encoding.PEM)
    (folder / f"{name}.pem").write_bytes(public)
    (folder / f"{name}.key").write_bytes(private)
    return public.decode(), private.decode()


class Authority(NamedTuple):
    """Signs certificates."""

    file: Path
    """Its own, PEM."""
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def signed(self, host: str) -> str:
        """Key and certificate of an address, PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _begun(host, self.certificate.subject)
            .public_key(key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        form = serialization.PrivateFormat.PKCS8
        private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        return (private + made.public_bytes(serialization.Encoding.PEM)).decode()


def made_authority(folder: Path) -> Authority:
    """A new one; its certificate is written to a folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _begun("authority", x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "authority.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return Authority(file, key, made)


def _begun(name: str, issuer: x509.Name) -> x509.CertificateBuilder:
    day = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(day - dt.timedelta(days=1))
        .not_valid_after(day + dt.timedelta(days=2))
    )
