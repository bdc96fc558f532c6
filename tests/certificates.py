"""Certificates for the tests with TLS, made while they run."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])

SIGNS_OTHERS = x509.KeyUsage(
    key_cert_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """A certificate authority that signs for this test run, and writes PEM files into `directory`.

    `strict` is what RFC 5280 asks for, and Python's clients since 3.13: certificates name the keys of their subject and of
    their issuer, and the authority's says that it signs others.
    """

    def __init__(self, directory: Path, name: str, *, strict: bool = True) -> None:
        self.directory = directory
        self.strict = strict
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(self.name, self.key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), True
        )
        if strict:
            builder = builder.add_extension(SIGNS_OTHERS, True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(
            builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(
        self, name: str, subject: x509.Name | None = None, names: x509.SubjectAlternativeName = LOOPBACK
    ) -> tuple[str, str]:
        """The files of a fresh certificate, by default for 127.0.0.1, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = subject or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key).add_extension(names, False)
        certificate, private = self.directory / f"{name}.cert.pem", self.directory / f"{name}.key.pem"
        certificate.write_bytes(
            builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(certificate), str(private)

    def revoke(self, *certificates: str) -> str:
        """The file of a list that revokes these certificates, and no others."""
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateRevocationListBuilder(self.name, now - dt.timedelta(days=1), now + dt.timedelta(days=1))
        for file in certificates:
            number = x509.load_pem_x509_certificate(Path(file).read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder(number, now - dt.timedelta(hours=1)).build()
            builder = builder.add_revoked_certificate(revoked)
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(x509.CRLNumber(int(now.timestamp())), False).add_extension(ours, False)
        file = self.directory / "revoked.pem"
        file.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return str(file)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - dt.timedelta(days=1),
            not_valid_after=now + dt.timedelta(days=1),
        )
        if not self.strict:
            return builder
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        its_own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return builder.add_extension(ours, False).add_extension(its_own, False)
