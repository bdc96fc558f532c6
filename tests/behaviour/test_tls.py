"""TLS listeners: the broker's certificate, and the client's where one is asked for."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path

import pika
import pika.exceptions
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker_process import BrokerProcess

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]

REFUSED = (pika.exceptions.AMQPConnectionError, ssl.SSLError)
LOOPBACK = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])

SIGNS_OTHERS = x509.KeyUsage(
    key_cert_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
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

    def issue(self, name: str) -> tuple[str, str]:
        """The files of a fresh certificate for 127.0.0.1 and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key).add_extension(LOOPBACK, False)
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


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture
def start(own_broker: Own, authority: Authority) -> Callable[..., BrokerProcess]:
    """Starts a broker with a TLS listener; keyword arguments are further ssl_options."""
    certificate, key = authority.issue("server")

    def start_broker(**options: object) -> BrokerProcess:
        options = {"certfile": certificate, "keyfile": key, "cacertfile": str(authority.file), **options}
        return own_broker(config={"listeners_ssl": ["127.0.0.1:0"], "ssl_options": options})

    return start_broker


def over_tls(
    connect: Connect, process: BrokerProcess, context: ssl.SSLContext, user: str = "guest"
) -> pika.BlockingConnection:
    port = int(process.started["tls_listeners"][0].rsplit(":", 1)[1])
    return connect(to=process, port=port, ssl_options=pika.SSLOptions(context, "127.0.0.1"), user=user)


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


def test_client_that_trusts_the_authority_gets_in(start: Own, connect: Connect, authority: Authority) -> None:
    channel = over_tls(connect, start(), trusting(authority)).channel()
    channel.confirm_delivery()
    name = channel.queue_declare("", exclusive=True).method.queue
    body = bytes(range(256)) * 4000
    for _ in range(5):
        channel.basic_publish("", name, body)
    for _ in range(5):
        assert channel.basic_get(name, auto_ack=True)[2] == body


def test_plain_listener_works_beside_it(start: Own, connect: Connect) -> None:
    assert connect(to=start()).is_open


def test_client_that_trusts_another_authority_turns_away(
    start: Own, connect: Connect, authority: Authority, tmp_path: Path
) -> None:
    process = start()
    with pytest.raises(REFUSED):
        over_tls(connect, process, trusting(Authority(tmp_path, "stranger")))
    assert over_tls(connect, process, trusting(authority)).is_open


def test_plain_client_on_the_tls_port_harms_nobody(
    start: Own, connect: Connect, authority: Authority
) -> None:
    process = start()
    port = int(process.started["tls_listeners"][0].rsplit(":", 1)[1])
    with pytest.raises(REFUSED):
        connect(to=process, port=port, stack_timeout=3)
    assert over_tls(connect, process, trusting(authority)).is_open


def test_old_tls_versions_are_refused(start: Own, connect: Connect, authority: Authority) -> None:
    process = start()
    context = trusting(authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert over_tls(connect, process, context).is_open
    old = trusting(authority)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(REFUSED):
        over_tls(connect, process, old)


def test_verify_peer_takes_a_certificate_of_the_authority(
    start: Own, connect: Connect, authority: Authority
) -> None:
    process = start(verify="verify_peer", fail_if_no_peer_cert=True)
    context = trusting(authority)
    context.load_cert_chain(*authority.issue("client"))
    assert over_tls(connect, process, context).channel().is_open


def test_verify_peer_takes_a_certificate_that_names_no_keys(
    start: Own, connect: Connect, authority: Authority, tmp_path: Path
) -> None:
    """Whichever Python the broker runs on: it asks no more of its clients than RabbitMQ did of them."""
    old = Authority(tmp_path, "old", strict=False)
    process = start(verify="verify_peer", fail_if_no_peer_cert=True, cacertfile=str(old.file))
    context = trusting(authority)
    context.load_cert_chain(*old.issue("client"))
    assert over_tls(connect, process, context).channel().is_open


def test_verify_peer_refuses_a_client_without_certificate(
    start: Own, connect: Connect, authority: Authority
) -> None:
    process = start(verify="verify_peer", fail_if_no_peer_cert=True)
    with pytest.raises(REFUSED):
        over_tls(connect, process, trusting(authority))


def test_verify_peer_refuses_a_certificate_of_another_authority(
    start: Own, connect: Connect, authority: Authority, tmp_path: Path
) -> None:
    process = start(verify="verify_peer", fail_if_no_peer_cert=True)
    context = trusting(authority)
    context.load_cert_chain(*Authority(tmp_path, "stranger").issue("client"))
    with pytest.raises(REFUSED):
        over_tls(connect, process, context)


def test_verify_peer_alone_lets_clients_without_certificate_in(
    start: Own, connect: Connect, authority: Authority
) -> None:
    assert over_tls(connect, start(verify="verify_peer"), trusting(authority)).is_open


def test_loopback_user_may_come_over_tls_too(start: Own, connect: Connect, authority: Authority) -> None:
    assert over_tls(connect, start(), trusting(authority), user="guest").is_open


def test_missing_certificate_ends_the_start(start: Own) -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)ended with 2 .*ssl_options: certificates cannot be loaded"
    ):
        start(certfile="/nowhere/cert.pem")
