"""TLS listeners: the broker's certificate, and the client's where one is asked for."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from certificates import Authority
from wire_client import FRAME_END, PROTOCOL_HEADER

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]

REFUSED = (pika.exceptions.AMQPConnectionError, ssl.SSLError)


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


def tls_port(process: BrokerProcess) -> int:
    return int(process.started["tls_listeners"][0].rsplit(":", 1)[1])


def over_tls(
    connect: Connect, process: BrokerProcess, context: ssl.SSLContext, user: str = "guest"
) -> pika.BlockingConnection:
    options = pika.SSLOptions(context, "127.0.0.1")
    return connect(to=process, port=tls_port(process), ssl_options=options, user=user)


def trusting(authority: Authority, only: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if only is not None:
        context.minimum_version = context.maximum_version = only
    return context


class Records:
    """A TLS client that takes what comes record by record, and so sees those that bring no data."""

    def __init__(self, process: BrokerProcess, context: ssl.SSLContext) -> None:
        self.socket = socket.create_connection((process.host, tls_port(process)), 5)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send()
                self._take_record()
        self._send()

    def write(self, data: bytes) -> None:
        self.tls.write(data)
        self._send()

    def read_record(self) -> bytes:
        """The data of the next record; empty when it is one of TLS's own."""
        self._take_record()
        try:
            return self.tls.read()
        except ssl.SSLWantReadError:
            return b""

    def _send(self) -> None:
        self.socket.sendall(self._outgoing.read())

    def _take_record(self) -> None:
        head = self._read_exactly(5)  # type, version, length
        self._incoming.write(head + self._read_exactly(int.from_bytes(head[3:], "big")))

    def _read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            assert chunk, f"the broker closed the socket after {data!r}"
            data += chunk
        return data


@pytest.fixture
def records() -> Iterator[Callable[[BrokerProcess, ssl.SSLContext], Records]]:
    clients: list[Records] = []

    def open_client(process: BrokerProcess, context: ssl.SSLContext) -> Records:
        clients.append(Records(process, context))
        return clients[-1]

    yield open_client
    for client in clients:
        client.socket.close()


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
    with pytest.raises(REFUSED):
        connect(to=process, port=tls_port(process), stack_timeout=3)
    assert over_tls(connect, process, trusting(authority)).is_open


def test_old_tls_versions_are_refused(start: Own, connect: Connect, authority: Authority) -> None:
    process = start()
    assert over_tls(connect, process, trusting(authority, ssl.TLSVersion.TLSv1_2)).is_open
    with pytest.raises(REFUSED):
        over_tls(connect, process, of_tls_1_1(authority))


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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_only_data_follows_the_handshake(
    start: Own, records: Callable[..., Records], authority: Authority, version: ssl.TLSVersion
) -> None:
    """No session ticket of TLS 1.3: the Java client's NIO mode takes its record for the start of a frame."""
    client = records(start(), trusting(authority, version))
    client.write(PROTOCOL_HEADER)
    came = [client.read_record()]
    while not came[-1].endswith(FRAME_END):
        came.append(client.read_record())
    assert all(came), f"records without data: {[len(data) for data in came]}"


def test_session_of_tls_1_2_is_taken_up_again(
    start: Own, records: Callable[..., Records], authority: Authority
) -> None:
    process, context = start(), trusting(authority, ssl.TLSVersion.TLSv1_2)
    first = records(process, context)
    port = tls_port(process)
    with socket.create_connection((process.host, port), 5) as plain:
        again = context.wrap_socket(plain, server_hostname="127.0.0.1", session=first.tls.session)
        assert again.session_reused
        again.close()


@pytest.mark.parametrize("first", ["AES128-GCM-SHA256", "AES256-GCM-SHA384"])
def test_cipher_is_the_clients_first_choice(
    start: Own, records: Callable[..., Records], authority: Authority, first: str
) -> None:
    context = trusting(authority, ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(f"ECDHE-ECDSA-{first}:ECDHE+AESGCM")
    assert records(start(), context).tls.cipher()[0] == f"ECDHE-ECDSA-{first}"


def refusal(process: BrokerProcess, context: ssl.SSLContext) -> str:
    """OpenSSL's name of the alert by which the broker refuses this client."""
    with (
        socket.create_connection((process.host, tls_port(process)), 5) as plain,
        pytest.raises(ssl.SSLError) as caught,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        client.recv(1)  # in TLS 1.3 the client has ended its handshake before its certificate is looked at
    return str(caught.value.reason)


@pytest.mark.parametrize(
    ("version", "alert"),
    [
        (ssl.TLSVersion.TLSv1_2, "SSLV3_ALERT_HANDSHAKE_FAILURE"),
        (ssl.TLSVersion.TLSv1_3, "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
    ],
)
def test_client_without_certificate_is_told_so(
    start: Own, authority: Authority, version: ssl.TLSVersion, alert: str
) -> None:
    process = start(verify="verify_peer", fail_if_no_peer_cert=True)
    assert refusal(process, trusting(authority, version)) == alert


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_with_a_certificate_of_another_authority_is_told_so(
    start: Own, authority: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    process = start(verify="verify_peer", fail_if_no_peer_cert=True)
    context = trusting(authority, version)
    context.load_cert_chain(*Authority(tmp_path, "stranger").issue("client"))
    assert refusal(process, context) == "TLSV1_ALERT_UNKNOWN_CA"


def of_tls_1_1(authority: Authority) -> ssl.SSLContext:
    context = trusting(authority)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def test_client_of_an_old_tls_version_is_told_so(start: Own, authority: Authority) -> None:
    assert refusal(start(), of_tls_1_1(authority)) == "TLSV1_ALERT_PROTOCOL_VERSION"


def test_client_without_a_common_cipher_is_told_so(start: Own, authority: Authority) -> None:
    context = trusting(authority, ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("ECDHE-RSA-AES256-GCM-SHA384")  # the broker's certificate is of another kind
    assert refusal(start(), context) == "SSLV3_ALERT_HANDSHAKE_FAILURE"


def test_client_that_goes_on_after_its_refusal_is_hung_up_on(start: Own, authority: Authority) -> None:
    process, outgoing = start(), ssl.MemoryBIO()
    tls = of_tls_1_1(authority).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    with socket.create_connection((process.host, tls_port(process)), 5) as plain:
        plain.sendall(hello)
        assert plain.recv(7)[:1] == b"\x15"  # an alert
        plain.sendall(hello)
        assert plain.recv(7) == b""


def test_missing_certificate_ends_the_start(start: Own) -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)ended with 2 .*ssl_options: certificates cannot be loaded"
    ):
        start(certfile="/nowhere/cert.pem")
