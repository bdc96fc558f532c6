"""/metrics, /metrics/per-object, /health: the figures agree with what was done."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from behaviour.helpers import Inbox, confirming, fill
from broker_process import BrokerProcess
from support import eventually, unique
from wire_client import WireClient

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def own(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return own_broker()


class Figures:
    """One scrape: `figures("rabbitmq_queues")`, or with labels `figures("...", queue="q")`."""

    def __init__(self, own: BrokerProcess, path: str = "/metrics") -> None:
        self.samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(get(own, path)[1]):
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def __call__(self, name: str, **labels: str) -> float:
        """The one sample with these labels."""
        found = [value for has, value in self.samples[name] if labels.items() <= has.items()]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]

    def labels(self, name: str, label: str) -> set[str]:
        return {has[label] for has, _ in self.samples.get(name, [])}


def get(own: BrokerProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{own.metrics}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_running_broker_is_alive_and_ready(own: BrokerProcess, path: str) -> None:
    status, body = get(own, path)
    assert (status, json.loads(body)) == (200, {"status": "ok"})


def test_unknown_page_is_not_found(own: BrokerProcess) -> None:
    assert get(own, "/nothing-here")[0] == 404


def test_stopped_broker_answers_no_more(own: BrokerProcess) -> None:
    own.stop()
    with pytest.raises(urllib.error.URLError):
        get(own, "/health/live")


def test_idle_broker_has_every_figure_at_zero(own: BrokerProcess) -> None:
    figures = Figures(own)
    for name in (
        "rabbitmq_connections",
        "rabbitmq_channels",
        "rabbitmq_consumers",
        "rabbitmq_queues",
        "rabbitmq_queue_messages_ready",
        "rabbitmq_queue_messages_unacked",
        "rabbitmq_queue_messages",
        "rabbitmq_channel_messages_published_total",
        "rabbitmq_connections_opened_total",
        "rabbitmq_alarms_memory_used_watermark",
        "rabbitmq_alarms_free_disk_space_watermark",
    ):
        assert figures(name) == 0, name


def test_connections_channels_and_queues_are_counted(own: BrokerProcess, connect: Connect) -> None:
    connections = [connect(to=own) for _ in range(3)]
    channels = [connection.channel() for connection in connections for _ in range(2)]
    for number in range(4):
        channels[0].queue_declare(f"q{number}")
    channels[0].queue_declare("q0")
    channels[0].queue_delete("q3")
    for number in range(3):
        channels[1].basic_consume(f"q{number}", lambda *_: None)
    figures = Figures(own)
    assert figures("rabbitmq_connections") == 3
    assert figures("rabbitmq_channels") == 6
    assert figures("rabbitmq_queues") == 3
    assert figures("rabbitmq_consumers") == 3
    assert figures("rabbitmq_queues_declared_total") == 5
    assert figures("rabbitmq_queues_created_total") == 4
    assert figures("rabbitmq_queues_deleted_total") == 1
    channels[0].close()
    for connection in connections[1:]:
        connection.close()
    figures = Figures(own)
    assert (figures("rabbitmq_connections"), figures("rabbitmq_channels")) == (1, 1)
    assert (figures("rabbitmq_connections_opened_total"), figures("rabbitmq_connections_closed_total")) == (3, 2)
    assert (figures("rabbitmq_channels_opened_total"), figures("rabbitmq_channels_closed_total")) == (6, 5)


def test_messages_are_counted_where_they_are(own: BrokerProcess, connect: Connect) -> None:
    channel = confirming(connect(to=own))
    channel.queue_declare("q")
    for _ in range(10):
        channel.basic_publish("", "q", bytes(1000))
    figures = Figures(own)
    assert figures("rabbitmq_queue_messages_ready") == 10
    assert figures("rabbitmq_queue_messages_ready_bytes") >= 10_000
    consuming = connect(to=own).channel()
    consuming.basic_qos(prefetch_count=4)
    inbox = Inbox(consuming, "q")
    inbox.wait_for(4)
    figures = Figures(own)
    assert figures("rabbitmq_queue_messages_ready") == 6
    assert figures("rabbitmq_queue_messages_unacked") == 4
    assert figures("rabbitmq_queue_messages") == 10
    inbox.ack(1, 2, 3, 4)
    inbox.wait_for(8)
    consuming.close()
    channel.queue_purge("q")
    assert Figures(own)("rabbitmq_queue_messages") == 0


def test_publishes_deliveries_and_acks_are_counted(own: BrokerProcess, connect: Connect) -> None:
    channel, plain = confirming(connect(to=own)), connect(to=own).channel()
    for name in ("a", "b", "c"):
        channel.queue_declare(name)
        channel.queue_bind(name, "amq.fanout")
    fill(channel, "a", 7)
    for _ in range(2):
        channel.basic_publish("amq.fanout", "", b"x")
    plain.basic_publish("", "b", b"x")
    plain.basic_publish("", "nowhere", b"dropped")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"returned", mandatory=True)
    inbox = Inbox(plain, "a")
    inbox.wait_for(9)
    inbox.ack(1, 2)
    plain.basic_nack(3)
    inbox.wait_for(10)
    Inbox(plain, "b", auto_ack=True).wait_for(3)
    plain.basic_get("c", auto_ack=True)
    plain.basic_ack(plain.basic_get("c")[0].delivery_tag)
    plain.basic_get("c")
    plain.queue_declare("c", passive=True)
    figures = Figures(own)
    assert figures("rabbitmq_channel_messages_published_total") == 12
    assert figures("rabbitmq_channel_messages_confirmed_total") == 10
    assert figures("rabbitmq_channel_messages_unroutable_dropped_total") == 1
    assert figures("rabbitmq_channel_messages_unroutable_returned_total") == 1
    assert figures("rabbitmq_queue_messages_published_total") == 7 + 2 * 3 + 1
    assert figures("rabbitmq_channel_messages_delivered_ack_total") == 10
    assert figures("rabbitmq_channel_messages_delivered_total") == 3
    assert figures("rabbitmq_channel_messages_redelivered_total") == 1
    assert figures("rabbitmq_channel_get_total") == 1
    assert figures("rabbitmq_channel_get_ack_total") == 1
    assert figures("rabbitmq_channel_get_empty_total") == 1
    assert figures("rabbitmq_channel_messages_acked_total") == 3


def test_counters_do_not_fall_when_their_objects_go(own: BrokerProcess, connect: Connect) -> None:
    connection = connect(to=own)
    channel = confirming(connection)
    channel.queue_declare("q")
    fill(channel, "q", 20)
    Inbox(channel, "q", auto_ack=True).wait_for(20)
    channel.queue_delete("q")
    names = (
        "rabbitmq_channel_messages_published_total",
        "rabbitmq_channel_messages_confirmed_total",
        "rabbitmq_channel_messages_delivered_total",
        "rabbitmq_queue_messages_published_total",
    )
    before = Figures(own)
    channel.close()
    connection.close()
    after = Figures(own)
    assert [before(name) for name in names] == [after(name) for name in names] == [20] * 4
    assert after("rabbitmq_connection_incoming_bytes_total") >= before("rabbitmq_connection_incoming_bytes_total") > 20


def test_unconfirmed_and_uncommitted_are_counted(own: BrokerProcess, raw: Callable[..., WireClient]) -> None:
    client = raw(to=own).open()
    client.open_channel(1)
    client.open_channel(2)
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    client.call(2, amqp.Tx.Select(), amqp.Tx.SelectOk)
    waiting = amqp.Queue.Declare(queue="waiting", arguments={"x-confirm-mode": "consumer-ack"})
    client.call(1, waiting, amqp.Queue.DeclareOk)
    for _ in range(3):
        client.publish(1, "", "waiting", b"x")
        client.publish(2, "", "waiting", b"x")
    client.expect_silence(1)
    client.expect_silence(2)
    figures = Figures(own)
    assert figures("rabbitmq_channel_messages_unconfirmed") == 3
    assert figures("rabbitmq_channel_messages_uncommitted") == 3


def test_failed_logins_are_counted(own: BrokerProcess, connect: Connect) -> None:
    for _ in range(2):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(to=own, password="wrong")
    assert Figures(own)("rabbitmq_auth_attempts_failed_total", protocol="amqp091") == 2


def test_per_object_view_names_each_queue_channel_and_connection(own: BrokerProcess, connect: Connect) -> None:
    channel = confirming(connect(to=own))
    first, second = unique("first"), 'with "quotes"\\and ☃'
    for name, count in ((first, 3), (second, 5)):
        channel.queue_declare(name)
        fill(channel, name, count)
    channel.basic_get(second)
    figures = Figures(own, "/metrics/per-object")
    assert figures("rabbitmq_queue_messages_ready", queue=first, vhost="/") == 3
    assert figures("rabbitmq_queue_messages_ready", queue=second, vhost="/") == 4
    assert figures("rabbitmq_queue_messages_unacked", queue=second) == 1
    (connection,) = figures.labels("rabbitmq_connection_channels", "connection")
    assert connection.endswith(f" -> {own.host}:{own.port}")
    assert figures.labels("rabbitmq_connection_channels", "user") == {"guest"}
    assert figures("rabbitmq_channel_messages_published_total", connection=connection) == 8


def test_objects_that_are_gone_leave_the_per_object_view(own: BrokerProcess, connect: Connect) -> None:
    connection = connect(to=own)
    channel = connection.channel()
    channel.queue_declare("q")
    assert Figures(own, "/metrics/per-object").labels("rabbitmq_queue_messages_ready", "queue") == {"q"}
    channel.queue_delete("q")
    connection.close()
    eventually(lambda: Figures(own)("rabbitmq_process_open_tcp_sockets") == 0)
    figures = Figures(own, "/metrics/per-object")
    assert figures.labels("rabbitmq_queue_messages_ready", "queue") == set()
    assert figures.labels("rabbitmq_connection_channels", "connection") == set()


# -- dead letters -------------------------------------------------------------------------------------------------------

DEAD_LETTERED = "rabbitmq_global_messages_dead_lettered_"
TO_THE_GRAVE = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
KEPT_UNTIL_TAKEN = {**TO_THE_GRAVE, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def dead_lettered(own: BrokerProcess, kind: str = "classic") -> dict[tuple[str, str], float]:
    """(reason, strategy) -> count, without those that are 0, for one type of queues."""
    return {
        (name.removeprefix(DEAD_LETTERED).removesuffix("_total"), labels["dead_letter_strategy"]): value
        for name, samples in Figures(own).samples.items()
        if name.startswith(DEAD_LETTERED)
        for labels, value in samples
        if value and labels["queue_type"] == f"rabbit_{kind}_queue"
    }


def test_every_series_of_dead_letters_is_there_from_the_start(own: BrokerProcess) -> None:
    found = {
        (name.removeprefix(DEAD_LETTERED).removesuffix("_total"), labels["dead_letter_strategy"])
        for name, samples in Figures(own).samples.items()
        if name.startswith(DEAD_LETTERED)
        for labels, _ in samples
    }
    strategies = ("at_least_once", "at_most_once", "disabled")
    assert found == {
        ("confirmed", "at_least_once"),
        *((reason, strategy) for reason in ("delivery_limit", "expired", "rejected") for strategy in strategies),
        *(("maxlen", strategy) for strategy in strategies[1:]),
    }


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        ({}, "disabled"),
        ({"x-dead-letter-exchange": "there is none"}, "disabled"),
        (TO_THE_GRAVE, "at_most_once"),
        ({**TO_THE_GRAVE, "x-dead-letter-routing-key": "nowhere"}, "at_most_once"),
        ({**TO_THE_GRAVE, "x-dead-letter-exchange": "amq.direct"}, "at_most_once"),
    ],
)
def test_what_a_queue_gives_up_is_counted_by_reason_and_strategy(
    own: BrokerProcess, connect: Connect, arguments: dict[str, str], strategy: str
) -> None:
    channel = confirming(connect(to=own))
    channel.queue_declare("grave")
    for name, more in {
        "rejected": {},
        "expired": {"x-message-ttl": 1},
        "dropped": {"x-max-length": 1},
        "refused": {"x-max-length": 1, "x-overflow": "reject-publish"},
        "refused-dlx": {"x-max-length": 1, "x-overflow": "reject-publish-dlx"},
        "limited": {"x-delivery-limit": 1},
        "purged": {},
        "deleted": {},
        "acked": {},
    }.items():
        channel.queue_declare(name, arguments={**arguments, **more})
    fill(channel, "rejected", 3)
    for _ in range(2):
        channel.basic_reject(channel.basic_get("rejected")[0].delivery_tag, requeue=False)
    channel.basic_nack(channel.basic_get("rejected")[0].delivery_tag, requeue=False)
    fill(channel, "expired", 2)
    fill(channel, "dropped", 5)
    for name in ("refused", "refused-dlx"):
        channel.basic_publish("", name, b"taken")
        for _ in range(2):
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", name, b"refused")
    fill(channel, "limited", 1)
    for _ in range(2):
        channel.basic_nack(channel.basic_get("limited")[0].delivery_tag)
    fill(channel, "purged", 1)
    channel.queue_purge("purged")
    fill(channel, "deleted", 1)
    channel.queue_delete("deleted")
    fill(channel, "acked", 1)
    channel.basic_ack(channel.basic_get("acked")[0].delivery_tag)
    expected = {
        ("rejected", strategy): 3, ("expired", strategy): 2, ("maxlen", strategy): 6, ("delivery_limit", strategy): 1,
    }  # fmt: skip
    eventually(lambda: dead_lettered(own) == expected or None)


def test_letters_kept_until_they_are_taken_are_counted_once_and_again_when_they_are(
    own: BrokerProcess, connect: Connect
) -> None:
    channel = confirming(connect(to=own))
    channel.queue_declare("q", arguments=KEPT_UNTIL_TAKEN)
    fill(channel, "q", 2)
    for _ in range(2):
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
    channel.queue_declare("q", passive=True)
    assert dead_lettered(own) == {("rejected", "at_least_once"): 2}
    channel.queue_declare("grave")
    taken = {("rejected", "at_least_once"): 2, ("confirmed", "at_least_once"): 2}
    eventually(lambda: dead_lettered(own) == taken or None)


def test_counts_of_dead_letters_do_not_fall_with_a_vhost(own: BrokerProcess, connect: Connect) -> None:
    own.ctl("add_vhost", "short-lived")
    own.ctl("set_permissions", "-p", "short-lived", "guest", ".*", ".*", ".*")
    channel = confirming(connect(to=own, vhost="short-lived"))
    channel.queue_declare("q")
    fill(channel, "q", 1)
    channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
    channel.queue_declare("q", passive=True)
    assert dead_lettered(own) == {("rejected", "disabled"): 1}
    own.ctl("delete_vhost", "short-lived")
    assert dead_lettered(own) == {("rejected", "disabled"): 1}


# -- the node -----------------------------------------------------------------------------------------------------------


def test_logins_are_counted(own: BrokerProcess, connect: Connect) -> None:
    connect(to=own)
    for _ in range(2):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(to=own, password="wrong")
    figures = Figures(own)
    assert figures("rabbitmq_auth_attempts_total", protocol="amqp091") == 3
    assert figures("rabbitmq_auth_attempts_succeeded_total", protocol="amqp091") == 1
    assert figures("rabbitmq_auth_attempts_failed_total", protocol="amqp091") == 2


def test_a_cluster_keeps_its_id(own: BrokerProcess) -> None:
    identity = Figures(own).labels("rabbitmq_identity_info", "rabbitmq_cluster_permanent_id")
    assert len(identity) == 1
    assert next(iter(identity)).startswith("rabbitmq-cluster-id-")
    assert f'internal_cluster_id\t"{next(iter(identity))}"' in own.ctl("list_global_parameters")
    own.restart()
    assert Figures(own).labels("rabbitmq_identity_info", "rabbitmq_cluster_permanent_id") == identity


def test_what_a_quorum_queue_gives_up_is_counted_as_that(own: BrokerProcess, connect: Connect) -> None:
    channel = confirming(connect(to=own))
    before = dead_lettered(own)
    channel.queue_declare("given up", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 0})
    for requeue in (True, False):
        channel.basic_publish("", "given up", b"x")
        channel.basic_nack(channel.basic_get("given up")[0].delivery_tag, requeue=requeue)
    wanted = {("delivery_limit", "disabled"): 1, ("rejected", "disabled"): 1}
    eventually(lambda: dead_lettered(own, "quorum") == wanted)
    assert dead_lettered(own) == before
    channel.queue_delete("given up")
