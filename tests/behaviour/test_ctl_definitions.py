"""RabbitMQ's definitions file: exported, imported, at the start too."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerAddress, BrokerProcess, CtlFailed
from support import unique

Ctl = Callable[..., str]

# Written by RabbitMQ 3.10.8.
RABBITMQ_FILE = Path(__file__).parent.parent / "rabbitmq_definitions.json"
VERSIONS = {"rabbit_version", "rabbitmq_version", "product_name", "product_version"}


def content(definitions: dict[str, Any]) -> dict[str, Any]:
    """What a definitions file says, whatever its order; RabbitMQ writes some objects as lists of pairs."""
    found: dict[str, Any] = {}
    for section, entries in definitions.items():
        if section in VERSIONS:
            continue
        texts = []
        for entry in copy.deepcopy(entries):
            if section == "vhosts":
                entry["limits"] = dict(entry["limits"])
                entry["metadata"]["tags"] = entry["metadata"]["tags"] or []
            if section == "parameters" and entry["component"] == "operator_policy":
                entry["value"]["definition"] = dict(entry["value"]["definition"])
            texts.append(json.dumps(entry, sort_keys=True))
        found[section] = sorted(texts)
    return found


def exported(ctl: Ctl) -> dict[str, Any]:
    return json.loads(ctl("export_definitions", "-"))


def without_guest(definitions: dict[str, Any]) -> dict[str, Any]:
    """What a new broker had by itself."""
    own = {"users": ("name", "guest"), "vhosts": ("name", "/"), "permissions": ("user", "guest")}
    return {
        section: [entry for entry in entries if section not in own or entry[own[section][0]] != own[section][1]]
        if isinstance(entries, list)
        else entries
        for section, entries in definitions.items()
    }


@pytest.mark.own
def test_an_export_of_rabbitmq_imports_and_exports_to_the_same(own_broker: Callable[..., BrokerProcess], tmp_path: Path):
    broker = own_broker()
    wanted = json.loads(RABBITMQ_FILE.read_text(encoding="utf-8"))
    broker.ctl("import_definitions", str(RABBITMQ_FILE))
    assert content(without_guest(exported(broker.ctl))) == content(wanted)
    broker.restart()
    assert content(without_guest(exported(broker.ctl))) == content(durable(wanted))
    file = tmp_path / "definitions.json"
    broker.ctl("export_definitions", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    broker.ctl("import_definitions", str(file))  # again changes nothing
    assert content(exported(broker.ctl)) == content(json.loads(file.read_text(encoding="utf-8")))


def durable(definitions: dict[str, Any]) -> dict[str, Any]:
    """Without the exchange and the queue that do not outlive a restart."""
    left = copy.deepcopy(definitions)
    for section in ("exchanges", "queues"):
        left[section] = [entry for entry in left[section] if entry["durable"]]
    left["bindings"] = [entry for entry in left["bindings"] if entry["source"] != "trans"]
    return left


@pytest.mark.own
def test_what_was_imported_is_in_effect(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    broker.ctl("import_definitions", str(RABBITMQ_FILE))
    assert "Success" in broker.ctl("authenticate_user", "shop", "secret")
    with pytest.raises(CtlFailed):
        broker.ctl("authenticate_user", "none", "x")
    broker.ctl("set_permissions", "-p", "orders/eu", "guest", ".*", ".*", ".*")
    connection = pika.BlockingConnection(broker.parameters(vhost="orders/eu"))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("shop.prio", durable=True, arguments={"x-max-priority": 10})
    channel.basic_publish("topic.all", "a.b.c", b"body")
    assert channel.basic_get("shop.prio", auto_ack=True)[2] == b"body"
    connection.close()
    assert "shop.prio\tttl\tcap" in broker.ctl("list_queues", "-p", "orders/eu", "name", "policy", "operator_policy")


@pytest.mark.own
def test_definitions_are_loaded_at_the_start(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker({"load_definitions": str(RABBITMQ_FILE)})
    wanted = json.loads(RABBITMQ_FILE.read_text(encoding="utf-8"))
    assert content(exported(broker.ctl)) == content(wanted)  # and no default user
    broker.ctl("delete_user", "none")
    broker.restart()
    assert content(exported(broker.ctl)) == content(wanted)


@pytest.mark.own
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{bad", "no JSON"),
        ("[]", "no JSON object"),
        ('{"policies": [{"name": "\\ud800", "pattern": "", "definition": {"expires": 1}}]}', "no JSON: "),
        ('{"users": [{"name": 5}]}', "users, entry 1 (without a name): 'name' must be a text"),
    ],
)
def test_a_bad_file_ends_the_start_with_one_line(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path, text: str, complaint: str
):
    file = tmp_path / "definitions.json"
    file.write_text(text)
    with pytest.raises(AssertionError) as caught:
        own_broker({"load_definitions": str(file)})
    assert "ended with 2" in str(caught.value)
    assert f"rabbitpy-broker: load_definitions: {file}: {complaint}" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def entries_of(vhost: str) -> dict[str, Any]:
    at = {"vhost": vhost}
    return {
        "permissions": [{**at, "user": "guest", "configure": ".*", "write": ".*", "read": ".*"}],
        "policies": [{**at, "name": "p", "pattern": "^q", "apply-to": "queues", "definition": {"max-length": 3}, "priority": 1}],
        "queues": [{**at, "name": "q", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 9}}],
        "exchanges": [
            {**at, "name": "x", "type": "topic", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
        ],
        "bindings": [
            {**at, "source": "x", "destination": "q", "destination_type": "queue", "routing_key": "k", "arguments": {}}
        ],
    }


@pytest.fixture
def import_(ctl: Ctl, tmp_path: Path) -> Callable[..., str]:
    def run(definitions: Any, *arguments: str) -> str:
        file = tmp_path / "import.json"
        file.write_text(definitions if isinstance(definitions, str) else json.dumps(definitions))
        return ctl("import_definitions", str(file), *arguments)

    return run


def test_what_exists_is_kept_and_policies_are_replaced(
    ctl: Ctl, import_: Callable[..., str], make_vhost: Callable[..., str]
):
    vhost = make_vhost()
    entries = entries_of(vhost)
    import_(entries)
    entries["queues"][0]["arguments"] = {"x-max-length": 1}
    entries["exchanges"][0]["type"] = "fanout"
    entries["policies"][0]["definition"] = {"max-length": 7}
    import_(entries)
    assert ctl("-s", "list_queues", "-p", vhost, "name", "arguments", "policy") == 'q\t[{"x-max-length",9}]\tp\n'
    assert "x\ttopic" in ctl("-s", "list_exchanges", "-p", vhost)
    assert '{"max-length":7}' in ctl("-s", "list_policies", "-p", vhost)
    assert "x\texchange\tq\tqueue\tk\t[]" in ctl("-s", "list_bindings", "-p", vhost)


def test_tags_may_be_a_text_with_commas(ctl: Ctl, import_: Callable[..., str], broker: BrokerAddress):
    name = unique("user")
    import_({"users": [{"name": name, "password": "secret", "tags": "a, b"}]})
    try:
        assert f"{name}\t[a, b]" in ctl("list_users")
        assert "Success" in ctl("authenticate_user", name, "secret")
    finally:
        ctl("delete_user", name)


def test_a_file_that_is_no_json_is_exit_code_65(import_: Callable[..., str]):
    with pytest.raises(CtlFailed) as caught:
        import_("{bad")
    assert caught.value.code == 65
    assert "Failed to deserialise input (format: JSON)" in caught.value.stderr


@pytest.mark.own
def test_a_file_of_one_vhost_goes_into_the_vhost_that_is_named(
    ctl: Ctl, import_: Callable[..., str], make_vhost: Callable[..., str]
):
    vhost = make_vhost()
    entries = entries_of(vhost)
    for section in entries.values():
        for entry in section:
            del entry["vhost"]
    import_(entries, "--vhost", vhost)
    assert ctl("-s", "list_queues", "-p", vhost, "name", "policy") == "q\tp\n"


@pytest.mark.own
@pytest.mark.parametrize(
    ("section", "change", "complaint"),
    [
        ("queues", {"vhost": "missing"}, "queues, entry 1 (name 'q', vhost 'missing'): Virtual host 'missing' does not exist"),
        ("queues", {"type": "tape"}, "queues of type 'tape' do not exist here"),
        ("queues", {"type": "quorum", "durable": False}, "invalid property 'non-durable' for queue 'q'"),
        ("queues", {"arguments": {"x-queue-type": "quorum", "x-max-priority": 4}}, "of queue type rabbit_quorum_queue"),
        ("queues", {"arguments": {"x-queue-type": "tape"}}, "queues of type 'tape' do not exist here"),
        ("queues", {"arguments": {"x-max-length": -1}}, "invalid arg 'x-max-length' for queue 'q'"),
        ("queues", {"durable": "yes"}, "'durable' must be true or false"),
        ("exchanges", {"type": "foo"}, "invalid exchange type 'foo'"),
        ("exchanges", {"arguments": {"alternate-exchange": 1}}, "invalid type 'long' for arg 'alternate-exchange'"),
        ("exchanges", {"arguments": {"x-message-deduplication": 1}}, "invalid arg 'x-message-deduplication'"),
        ("policies", {"pattern": "("}, "pattern should be regular expression but is invalid"),
        ("policies", {"definition": {"max-lengthx": 1}}, "are not recognised policy settings"),
        ("permissions", {"user": "nobody-of-that-name"}, "does not exist"),
        ("permissions", {"configure": "("}, "'(' is no regular expression"),
        ("bindings", {"destination_type": "topic"}, "destination_type must be queue or exchange"),
        ("bindings", {"source": None}, "has no 'source'"),
        ("bindings", {"source": "amq.headers", "arguments": {"x-match": "some"}}, "Invalid x-match field value"),
    ],
)
def test_a_wrong_entry_is_named_and_nothing_is_imported(
    ctl: Ctl, import_: Callable[..., str], make_vhost: Callable[..., str], section: str, change: dict[str, Any], complaint: str
):
    vhost = make_vhost()
    entries = entries_of(vhost)
    entries[section][0].update(change)
    with pytest.raises(CtlFailed) as caught:
        import_(entries)
    assert caught.value.code == 65
    assert f"{section}, entry 1 (" in caught.value.stderr
    assert complaint in caught.value.stderr
    assert ctl("-q", "list_queues", "-p", vhost) == ctl("-q", "list_policies", "-p", vhost) == ""


@pytest.mark.own
def test_limits_do_not_measure_the_file_that_they_are_in(
    ctl: Ctl, import_: Callable[..., str], make_vhost: Callable[..., str]
):
    vhost = make_vhost()
    import_({"vhosts": [{"name": vhost, "limits": {"max-queues": 0}}], **entries_of(vhost)})
    assert ctl("-s", "list_queues", "-p", vhost, "name") == "q\n"
    assert ctl("-q", "list_vhost_limits", "-p", vhost) == '{"max-queues":0}\n'
    import_({"vhosts": [{"name": vhost}]})  # nothing is deleted
    assert ctl("-q", "list_vhost_limits", "-p", vhost) == '{"max-queues":0}\n'


@pytest.mark.own
def test_a_binding_to_nothing_is_left_out_and_counted(
    ctl: Ctl, import_: Callable[..., str], make_vhost: Callable[..., str]
):
    entries = entries_of(make_vhost())
    entries["bindings"][0]["source"] = "missing"
    assert "Left out 1: binding of 'missing' to 'q': no 'missing'" in import_(entries)


# In the form of RabbitMQ 4: the default type of a vhost stands beside its name too, queues have no type but their argument.
RABBITMQ_4: dict[str, Any] = {
    "rabbit_version": "4.1.0",
    "rabbitmq_version": "4.1.0",
    "product_name": "RabbitMQ",
    "product_version": "4.1.0",
    "rabbitmq_definition_format": "cluster",
    "original_cluster_name": "rabbit@one",
    "explanation": "Definitions of cluster 'rabbit@one'",
    "users": [],
    "vhosts": [
        {
            "name": "orders",
            "description": "",
            "metadata": {"description": "", "tags": [], "default_queue_type": "quorum"},
            "tags": [],
            "default_queue_type": "quorum",
        },
        {
            "name": "events",
            "description": "",
            "metadata": {"description": "", "tags": [], "default_queue_type": "stream"},
            "tags": [],
            "default_queue_type": "stream",
        },
    ],
    "permissions": [],
    "topic_permissions": [],
    "parameters": [],
    "global_parameters": [{"name": "cluster_tags", "value": []}],
    "policies": [
        {
            "vhost": "orders",
            "name": "limit",
            "pattern": "^q",
            "apply-to": "quorum_queues",
            "definition": {"delivery-limit": -1, "target-group-size": 3, "dead-letter-strategy": "at-least-once"},
            "priority": 5,
        },
        {
            "vhost": "events",
            "name": "keep",
            "pattern": "^log",
            "apply-to": "streams",
            "definition": {"max-age": "7D", "max-length-bytes": 1000000000, "stream-max-segment-size-bytes": 50000000},
            "priority": 1,
        },
    ],
    "queues": [
        {
            "name": "log",
            "vhost": "events",
            "durable": True,
            "auto_delete": False,
            "arguments": {
                "x-queue-type": "stream",
                "x-max-age": "30D",
                "x-max-length-bytes": 20000000000,
                "x-stream-filter-size-bytes": 32,
                "x-initial-cluster-size": 3,
                "x-queue-leader-locator": "balanced",
            },
        },
        {
            "name": "q.plain",
            "vhost": "orders",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3, "x-delivery-limit": 50},
        },
        {
            "name": "q.full",
            "vhost": "orders",
            "durable": True,
            "auto_delete": False,
            "arguments": {
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": "dlx",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                "x-queue-leader-locator": "balanced",
                "x-single-active-consumer": True,
            },
        },
        {"name": "c", "vhost": "orders", "durable": True, "auto_delete": True, "arguments": {"x-queue-type": "classic"}},
    ],
    "exchanges": [
        {
            "name": "dlx",
            "vhost": "orders",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        },
        {
            "name": "logs",
            "vhost": "events",
            "type": "x-super-stream",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"x-super-stream": True},
        },
    ],
    "bindings": [
        {
            "source": "logs",
            "vhost": "events",
            "destination": "log",
            "destination_type": "queue",
            "routing_key": "0",
            "arguments": {"x-stream-partition-order": 0},
        },
        {
            "source": "dlx",
            "vhost": "orders",
            "destination": "q.plain",
            "destination_type": "queue",
            "routing_key": "#",
            "arguments": {},
        }
    ],
}


@pytest.mark.own
def test_definitions_of_rabbitmq_4_export_to_what_was_imported(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = own_broker()
    broker.ctl("import_definitions", "-", stdin=json.dumps(RABBITMQ_4))
    for _ in range(2):
        found = exported(broker.ctl)
        for section in ("policies", "queues", "exchanges", "bindings"):
            wanted = copy.deepcopy(RABBITMQ_4[section])
            for entry in wanted:
                if section == "queues":
                    entry["type"] = entry["arguments"]["x-queue-type"]
                if section == "exchanges":
                    del entry["internal"]  # it is left out where it says nothing
            assert sorted(found[section], key=str_of) == sorted(wanted, key=str_of)
        vhost = next(entry for entry in found["vhosts"] if entry["name"] == "orders")
        assert vhost["metadata"] == RABBITMQ_4["vhosts"][0]["metadata"]
        assert "q.plain\tquorum\tlimit" in broker.ctl("list_queues", "-p", "orders", "name", "type", "policy")
        assert "log\tstream\tkeep" in broker.ctl("list_queues", "-p", "events", "name", "type", "policy")
        assert "c\tclassic\t\n" in broker.ctl("list_queues", "-p", "orders", "name", "type", "policy")
        broker.restart()
    other = own_broker()
    other.ctl("import_definitions", "-", stdin=json.dumps(found))
    assert content(exported(other.ctl)) == content(found)


def str_of(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True)


@pytest.mark.own
def test_type_that_stands_beside_the_arguments_counts(own_broker: Callable[..., BrokerProcess]) -> None:
    """A file that somebody has written by hand."""
    broker = own_broker()
    queues = [{"name": "q", "vhost": "/", "type": "quorum"}, {"name": "c", "vhost": "/", "type": "classic"}]
    broker.ctl("import_definitions", "-", stdin=json.dumps({"queues": queues}))
    found = {entry["name"]: (entry["type"], entry["arguments"]) for entry in exported(broker.ctl)["queues"]}
    assert found == {"q": ("quorum", {"x-queue-type": "quorum"}), "c": ("classic", {})}


def test_default_type_that_does_not_exist_is_refused(import_: Callable[..., str]) -> None:
    with pytest.raises(CtlFailed) as caught:
        import_({"vhosts": [{"name": unique("vhost"), "default_queue_type": "tape"}]})
    assert "queues of type 'tape' do not exist here" in str(caught.value)
