"""Logging in with a client certificate: EXTERNAL, which name is taken, revoked certificates, and certificates read again."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pika
import pika.exceptions
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from broker_process import BrokerProcess, CtlFailed
from certificates import LOOPBACK, Authority
from rabbitpy_broker.net.certificates import certificate_name
from support import eventually

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]

REFUSED = (pika.exceptions.AMQPConnectionError, ssl.SSLError)
CLIENT = x509.Name(
    [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Anna, and Sons"),
        x509.NameAttribute(NameOID.COMMON_NAME, "client-1"),
    ]
)
CLIENT_NAMES = x509.SubjectAlternativeName([*LOOPBACK, x509.DNSName("one.example"), x509.DNSName("two.example")])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def client(authority: Authority) -> tuple[str, str]:
    return authority.issue("client-1", CLIENT, CLIENT_NAMES)


@pytest.fixture
def start(own_broker: Own, authority: Authority) -> Callable[..., BrokerProcess]:
    """`start(user, crlfile=..., **settings)`: a broker with TLS and EXTERNAL that knows this user."""
    certificate, key = authority.issue("server")

    def start_broker(user: str, *, crlfile: str = "", **settings: object) -> BrokerProcess:
        tls = {"certfile": certificate, "keyfile": key, "cacertfile": str(authority.file), "verify": "verify_peer"}
        config = {"listeners_ssl": ["127.0.0.1:0"], "auth_mechanisms": ["PLAIN", "EXTERNAL"], **settings}
        process = own_broker(config={**config, "ssl_options": {**tls, "crlfile": crlfile}})
        process.ctl("add_user", user, "secret")
        process.ctl("set_permissions", user, ".*", ".*", ".*")
        return process

    return start_broker


def external(connect: Connect, process: BrokerProcess, authority: Authority, client: tuple[str, str]) -> pika.BlockingConnection:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(*client)
    options = pika.SSLOptions(context, "127.0.0.1")
    return connect(to=process, port=tls_port(process), ssl_options=options, credentials=pika.credentials.ExternalCredentials())


def tls_port(process: BrokerProcess) -> int:
    return int(process.started["tls_listeners"][0].rsplit(":", 1)[1])


def server_serial(process: BrokerProcess, authority: Authority) -> int:
    """The serial number of the certificate that a new client is shown."""
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        socket.create_connection((process.host, tls_port(process)), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"").serial_number


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (r"CN=client-1,O=Anna\, and Sons", {}),
        ("client-1", {"ssl_cert_login_from": "common_name"}),
        (
            "two.example",
            {"ssl_cert_login_from": "subject_alternative_name", "ssl_cert_login_san_type": "dns", "ssl_cert_login_san_index": 1},
        ),
    ],
)
def test_the_name_in_the_certificate_logs_in(
    start: Callable[..., BrokerProcess],
    connect: Connect,
    authority: Authority,
    client: tuple[str, str],
    name: str,
    settings: dict[str, object],
) -> None:
    process = start(name, **settings)
    assert external(connect, process, authority, client).channel().is_open
    (login,) = process.events("auth.login")
    assert (login["user"], login["mechanism"], login["backend"]) == (name, "EXTERNAL", "internal")


def test_a_name_that_is_no_users_is_refused(
    start: Callable[..., BrokerProcess], connect: Connect, authority: Authority, client: tuple[str, str]
) -> None:
    process = start("somebody", ssl_cert_login_from="common_name")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="using authentication mechanism EXTERNAL"):
        external(connect, process, authority, client)
    assert process.events("auth.login_failed")[0]["user"] == "client-1"


def test_external_is_offered_only_where_a_certificate_was_shown(
    start: Callable[..., BrokerProcess], connect: Connect, authority: Authority, client: tuple[str, str]
) -> None:
    process = start("client-1", ssl_cert_login_from="common_name")
    with pytest.raises(pika.exceptions.AuthenticationError):
        connect(to=process, credentials=pika.credentials.ExternalCredentials())
    assert connect(to=process, user="client-1", password="secret").is_open


def test_a_revoked_certificate_is_refused_and_the_others_are_not(
    start: Callable[..., BrokerProcess], connect: Connect, authority: Authority, client: tuple[str, str]
) -> None:
    other = authority.issue("other")
    process = start("client-1", crlfile=authority.revoke(other[0]), ssl_cert_login_from="common_name")
    assert external(connect, process, authority, client).is_open
    with pytest.raises(REFUSED):
        external(connect, process, authority, other)
    authority.revoke(other[0], client[0])
    assert process.ctl("-q", "reload_tls") == "Certificates were read again\n"
    with pytest.raises(REFUSED):
        external(connect, process, authority, client)


def test_a_hangup_has_new_clients_see_the_new_certificate_and_harms_nobody(
    start: Callable[..., BrokerProcess], connect: Connect, authority: Authority, client: tuple[str, str]
) -> None:
    process = start("client-1", ssl_cert_login_from="common_name")
    before = server_serial(process, authority)
    connection = external(connect, process, authority, client)
    authority.issue("server")
    process.signal(signal.SIGHUP)
    eventually(lambda: process.events("certificates read again"))
    assert server_serial(process, authority) != before
    assert connection.channel().is_open


def test_certificates_that_cannot_be_read_leave_those_that_were_there(
    start: Callable[..., BrokerProcess], connect: Connect, authority: Authority, client: tuple[str, str], tmp_path: Path
) -> None:
    process = start("client-1", ssl_cert_login_from="common_name")
    file = Path(process.config["ssl_options"]["certfile"])
    good = file.read_bytes()
    file.write_text("nothing")
    with pytest.raises(CtlFailed, match="certificates cannot be loaded"):
        process.ctl("reload_tls")
    file.write_bytes(good)
    assert external(connect, process, authority, client).is_open


@pytest.mark.parametrize(
    ("source", "san_type", "index", "name"),
    [
        ("distinguished_name", "dns", 0, r"UID=1+CN=\#a\+b,O=x\ "),
        ("common_name", "dns", 0, "#a+b"),
        ("subject_alternative_name", "email", 0, "a@b"),
        ("subject_alt_name", "ip", 0, "127.0.0.1"),
        ("subject_alternative_name", "uri", 0, ""),
        ("subject_alternative_name", "dns", 5, ""),
    ],
)
def test_names_are_those_of_rfc_4514(source: str, san_type: str, index: int, name: str) -> None:
    certificate = {
        "subject": ((("organizationName", "x "),), (("userId", "1"), ("commonName", "#a+b"))),
        "subjectAltName": (("DNS", "d"), ("email", "a@b"), ("IP Address", "127.0.0.1")),
    }
    assert certificate_name(certificate, source, san_type, index) == name
