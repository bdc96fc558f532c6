"""Users whom a web server knows: RabbitMQ's HTTP back end, its questions, its answers, and that nobody waits for them."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

import aio_pika
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from support import eventually, full_text, unique

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]

LOGIN_REFUSED = "using authentication mechanism PLAIN"


class Oracle(http.server.ThreadingHTTPServer):
    """A web server that lets anna do all but with what is called `denied`; `asked` has each path and form."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answers: dict[str, tuple[int, str]] = {}
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.path_held = ""

    def paths(self) -> dict[str, str]:
        """The settings that point here."""
        return {f"{name}_path": f"http://127.0.0.1:{self.server_port}/{name}" for name in ("user", "vhost", "resource", "topic")}

    def forms(self, path: str) -> list[dict[str, str]]:
        return [form for asked, form in self.asked if asked == path]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Oracle

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self._answer(parts.path, parts.query)

    def do_POST(self) -> None:
        self._answer(self.path, self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _answer(self, path: str, form: str) -> None:
        fields = dict(urllib.parse.parse_qsl(form, keep_blank_values=True))
        self.server.asked.append((path, fields))
        if path == self.server.path_held:
            self.server.may_answer.wait(10)
        denied = "denied" in (fields.get("name"), fields.get("routing_key"), fields.get("password"))
        default = "deny" if denied else "allow administrator management" if path == "/user" else "allow"
        status, text = self.server.answers.get(fields.get("name") or path, (200, default))
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        """Nothing is printed."""


@pytest.fixture(scope="module")
def serving() -> Iterator[Oracle]:
    with Oracle() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def oracle(serving: Oracle) -> Iterator[Oracle]:
    serving.asked.clear()
    serving.answers.clear()
    serving.path_held = ""
    yield serving
    serving.may_answer.set()


@pytest.fixture
def anna() -> str:
    """A name that no other test has asked about."""
    return unique("anna")


@pytest.fixture(scope="module")
def process(serving: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that asks the server first, for all tests that need no other settings."""
    auth = {"http_method": "post", **serving.paths()}
    config = {"auth_backends": ["http", "internal"], "auth_http": auth}
    running = BrokerProcess(tmp_path_factory.mktemp("http"), config).start()
    yield running
    running.stop()


@pytest.fixture
def start(own_broker: Own, oracle: Oracle) -> Callable[..., BrokerProcess]:
    def start_broker(**settings: object) -> BrokerProcess:
        auth = {"http_method": "post", **oracle.paths()}
        return own_broker(config={"auth_backends": ["http", "internal"], "auth_http": auth, **settings})

    return start_broker


@pytest.fixture
def channel(process: BrokerProcess, connect: Connect, oracle: Oracle, anna: str) -> BlockingChannel:
    return connect(to=process, user=anna).channel()


def refusal(act: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        act()
    return caught.value.reply_code, caught.value.reply_text


def test_questions_have_rabbitmqs_parameters(channel: BlockingChannel, oracle: Oracle, anna: str) -> None:
    channel.confirm_delivery()
    channel.queue_declare("orders", exclusive=True)
    channel.queue_bind("orders", "amq.topic", "a.b")
    channel.basic_publish("amq.topic", "a.b", b"1")
    channel.basic_publish("", "orders", b"2")
    about = {"username": anna, "vhost": "/", "tags": "administrator management"}
    key = {"routing_key": "a.b", "variable_map.username": anna, "variable_map.vhost": "/"}
    assert oracle.forms("/user") == [{"username": anna, "password": "guest"}]
    assert oracle.forms("/vhost") == [{**about, "ip": "127.0.0.1"}]
    assert oracle.forms("/resource") == [
        {**about, "resource": "queue", "name": "orders", "permission": "configure"},
        {**about, "resource": "queue", "name": "orders", "permission": "write"},
        {**about, "resource": "exchange", "name": "amq.topic", "permission": "read"},
        {**about, "resource": "exchange", "name": "amq.topic", "permission": "write"},
        {**about, "resource": "exchange", "name": "amq.default", "permission": "write"},
    ]
    assert oracle.forms("/topic") == [
        {**about, **key, "resource": "topic", "name": "amq.topic", "permission": "read"},
        {**about, **key, "resource": "topic", "name": "amq.topic", "permission": "write"},
    ]
    assert channel.queue_declare("orders", passive=True).method.message_count == 2


def test_questions_may_come_by_get(start: Callable[..., BrokerProcess], connect: Connect, oracle: Oracle) -> None:
    process = start(auth_http={"http_method": "get", **oracle.paths()})
    assert connect(to=process, user="anna & co", password="a=b").is_open
    assert oracle.forms("/user") == [{"username": "anna & co", "password": "a=b"}]


def test_a_denied_login_goes_on_to_the_next_back_end(
    process: BrokerProcess, connect: Connect, oracle: Oracle, anna: str
) -> None:
    process.ctl("add_user", "own", "denied")
    process.ctl("set_permissions", "own", ".*", ".*", ".*")
    connect(to=process, user="own", password="denied").channel().queue_declare("orders", exclusive=True)
    assert oracle.forms("/resource") == []
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match=LOGIN_REFUSED):
        connect(to=process, user=anna, password="denied")


@pytest.mark.parametrize(("status", "text"), [(200, "perhaps"), (500, "allow"), (404, "")])
def test_what_is_no_answer_is_a_refusal(
    process: BrokerProcess, connect: Connect, oracle: Oracle, status: int, text: str, anna: str
) -> None:
    oracle.answers["/user"] = (status, text)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match=LOGIN_REFUSED):
        connect(to=process, user=anna)


def test_a_server_that_does_not_answer_lets_nobody_in(start: Callable[..., BrokerProcess], connect: Connect, anna: str) -> None:
    process = start(auth_http={"user_path": "http://127.0.0.1:1/user"})
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match=LOGIN_REFUSED):
        connect(to=process, user=anna)
    assert process.events("auth.backend_failed")


def test_denied_resources_and_keys_close_the_channel(
    process: BrokerProcess, connect: Connect, oracle: Oracle, anna: str
) -> None:
    connection = connect(to=process, user=anna)
    oracle.answers["broken"] = (500, "oops")
    text = f"access to queue 'denied' in vhost '/' refused for user '{anna}'"
    assert refusal(lambda: connection.channel().queue_declare("denied")) == (403, full_text(403, text))
    text = text.replace("denied", "broken") + ", backend rabbit_auth_backend_http returned an error: "
    assert refusal(lambda: connection.channel().queue_declare("broken"))[1].startswith(full_text(403, text))

    def publish(routing_key: str) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", routing_key, b"")

    text = f"access to topic 'denied' in exchange 'amq.topic' in vhost '/' refused for user '{anna}'"
    assert refusal(lambda: publish("denied")) == (403, full_text(403, text))
    publish("fine")


def test_a_vhost_that_is_denied_is_refused(process: BrokerProcess, connect: Connect, oracle: Oracle, anna: str) -> None:
    oracle.answers["/vhost"] = (200, "deny")
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=f"access to vhost '/' refused for user '{anna}'"):
        connect(to=process, user=anna)


@pytest.mark.parametrize("size", [0, 10, 500_000], ids=["empty", "one frame", "many frames"])
def test_what_waits_for_an_answer_comes_in_order_and_others_go_on(
    process: BrokerProcess, connect: Connect, oracle: Oracle, size: int, anna: str
) -> None:
    """Publishes behind the one whose exchange is being asked about wait with it; another connection does not."""
    other = connect(to=process, user="own").channel()
    other.queue_declare("others", exclusive=True)
    connection = connect(to=process, user=anna)
    channel = connection.channel()
    channel.queue_declare("orders", exclusive=True)
    oracle.path_held = "/resource"
    oracle.may_answer.clear()
    for number in range(3):
        channel.basic_publish("", "orders", bytes([number]) * size)
    eventually(lambda: [form for form in oracle.forms("/resource") if form["permission"] == "write"])
    assert other.queue_declare("others", passive=True).method.message_count == 0
    oracle.may_answer.set()
    eventually(lambda: channel.queue_declare("orders", passive=True).method.message_count == 3)
    assert [channel.basic_get("orders", auto_ack=True)[2] for _ in range(3)] == [bytes([n]) * size for n in range(3)]
    assert len([form for form in oracle.forms("/resource") if form["permission"] == "write"]) == 1


def test_a_queue_whose_name_is_left_to_the_broker_is_asked_about_once(
    channel: BlockingChannel, oracle: Oracle
) -> None:
    name = channel.queue_declare("").method.queue
    assert [form["name"] for form in oracle.forms("/resource")] == [name]
    assert channel.queue_declare("").method.queue != name


def test_a_connection_that_ends_while_it_waits_ends_well(
    process: BrokerProcess, connect: Connect, oracle: Oracle, anna: str
) -> None:
    channel = connect(to=process, user=anna).channel()
    oracle.path_held = "/resource"
    oracle.may_answer.clear()
    channel.basic_publish("", "orders", b"")
    eventually(lambda: oracle.forms("/resource"))
    process.ctl("close_all_user_connections", anna, "enough")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        channel.connection.process_data_events(5)
    oracle.may_answer.set()
    assert connect(to=process, user=anna).is_open


def test_answers_are_forgotten_after_their_time(
    start: Callable[..., BrokerProcess], connect: Connect, oracle: Oracle, anna: str
) -> None:
    channel = connect(to=start(auth_cache={"cache_ttl": 1000}), user=anna).channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", exclusive=True)
    channel.basic_publish("", "orders", b"")
    oracle.answers["amq.default"] = (200, "deny")

    def is_refused() -> bool:
        try:
            channel.basic_publish("", "orders", b"")
        except pika.exceptions.ChannelClosedByBroker as closed:
            return closed.reply_code == 403
        return False

    assert eventually(is_refused)


def test_the_back_end_cache_asks_about_a_login_once(
    start: Callable[..., BrokerProcess], connect: Connect, oracle: Oracle, anna: str
) -> None:
    process = start(auth_backends=["cache"])
    for _ in range(2):
        connect(to=process, user=anna).close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=process, user=anna, password="denied")
    assert [form["password"] for form in oracle.forms("/user")] == ["guest", "denied"]


def test_one_may_say_who_it_is_and_the_other_what_they_may_do(
    own_broker: Own, connect: Connect, oracle: Oracle, anna: str
) -> None:
    split = {"1": {"authn": "internal", "authz": "http"}}
    process = own_broker(config={"auth_backends": split, "auth_http": {"http_method": "post", **oracle.paths()}})
    process.ctl("add_user", anna, "secret")
    channel = connect(to=process, user=anna, password="secret").channel()
    channel.queue_declare("orders", exclusive=True)
    assert [form["name"] for form in oracle.forms("/resource")] == ["orders"]
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=process, user=anna, password="other")


def test_the_management_api_asks_too(process: BrokerProcess, oracle: Oracle, anna: str) -> None:
    def ask(path: str, password: str = "guest", method: str = "GET") -> bytes:
        credentials = base64.b64encode(f"{anna}:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}"}
        request = urllib.request.Request(f"http://{process.management}/api/{path}", b"{}", headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            return bytes(response.read())

    assert ask("whoami") == json.dumps({"name": anna, "tags": ["administrator", "management"]}, separators=(",", ":")).encode()
    ask("queues/%2F/made", method="PUT")
    assert [form["name"] for form in oracle.forms("/resource")] == ["made"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask("whoami", "denied")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask("queues/%2F/denied", method="PUT")


async def test_aio_pika_logs_in(process: BrokerProcess, oracle: Oracle) -> None:
    connection = await aio_pika.connect(f"amqp://anna:secret@{process.host}:{process.port}/")
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("orders", exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"one"), queue.name)
        message = await queue.get(timeout=5)
        assert message.body == b"one"
        await message.ack()
