"""Users, their tags, passwords, permissions and limits by the command line, with rabbitmqctl's words and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest

from broker_process import BrokerAddress, CtlFailed
from support import assert_closed, unique

Ctl = Callable[..., str]


@pytest.fixture
def user(ctl: Ctl) -> Iterator[str]:
    """A new user with the password "secret", deleted after the test if it is still there."""
    name = unique("user")
    ctl("add_user", name, "secret")
    yield name
    if name in names(ctl):
        ctl("delete_user", name)


def names(ctl: Ctl) -> dict[str, list[str]]:
    return {row["user"]: row["tags"] for row in json.loads(ctl("list_users", "--formatter", "json"))}


def lines(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def fails(ctl: Ctl, code: int, *arguments: str) -> str:
    with pytest.raises(CtlFailed) as caught:
        ctl(*arguments)
    assert caught.value.code == code, caught.value
    return caught.value.stderr


def test_a_user_is_added_and_deleted(ctl: Ctl, broker: BrokerAddress):
    name = unique("user")
    assert ctl("add_user", name, "secret").splitlines()[0] == f'Adding user "{name}" ...'
    assert names(ctl)[name] == []
    assert ctl("delete_user", name) == f'Deleting user "{name}" ...\n'
    assert name not in names(ctl)


def test_a_user_that_exists_is_not_added_again(ctl: Ctl, user: str):
    assert fails(ctl, 70, "add_user", user, "other") == f'Error:\nUser "{user}" already exists\n'
    assert "Success" in ctl("authenticate_user", user, "secret")


def test_the_password_may_come_from_standard_input(ctl: Ctl, broker: BrokerAddress):
    name = unique("user")
    ctl("add_user", name, stdin="from stdin\n")
    try:
        assert "Success" in ctl("authenticate_user", name, "from stdin")
    finally:
        ctl("delete_user", name)


@pytest.mark.parametrize(
    "arguments",
    [("delete_user",), ("change_password", "x"), ("set_user_tags", "a"), ("set_user_tags",)],
)
def test_an_unknown_user_is_exit_code_67(ctl: Ctl, broker: BrokerAddress, arguments: tuple[str, ...]):
    name = unique("nobody")
    command, *rest = arguments
    assert fails(ctl, 67, command, name, *rest) == f'Error:\nUser "{name}" does not exist\n'


def test_a_changed_password_is_the_one_that_counts(ctl: Ctl, user: str):
    ctl("change_password", user, "new")
    assert "Success" in ctl("authenticate_user", user, "new")
    error = fails(ctl, 65, "authenticate_user", user, "secret")
    assert f'failed to authenticate user "{user}"' in error
    assert f"user '{user}' - invalid credentials" in error


def test_after_clear_password_no_password_is_the_users(ctl: Ctl, user: str):
    ctl("clear_password", user)
    fails(ctl, 65, "authenticate_user", user, "secret")


def test_tags_are_set_as_a_whole(ctl: Ctl, user: str):
    assert ctl("set_user_tags", user, "monitoring", "management") == (
        f'Setting tags for user "{user}" to [monitoring, management] ...\n'
    )
    assert names(ctl)[user] == ["monitoring", "management"]
    assert [user, "[monitoring, management]"] in lines(ctl("-q", "list_users"))
    ctl("set_user_tags", user)
    assert names(ctl)[user] == []


def test_permissions_are_set_listed_and_cleared(ctl: Ctl, user: str, make_vhost: Callable[..., str]):
    vhost = make_vhost()
    ctl("set_permissions", "-p", vhost, user, "^a", "", ".*")
    assert lines(ctl("-q", "list_user_permissions", user)) == [
        ["vhost", "configure", "write", "read"],
        [vhost, "^a", "", ".*"],
    ]
    assert [user, "^a", "", ".*"] in lines(ctl("-q", "list_permissions", "-p", vhost))
    ctl("clear_permissions", "-p", vhost, user)
    assert lines(ctl("-q", "list_user_permissions", user)) == []


def test_permissions_need_a_user_and_a_vhost_and_regular_expressions(ctl: Ctl, user: str, make_vhost: Callable[..., str]):
    vhost, missing = make_vhost(), unique("missing")
    assert f"User {missing} does not exist" in fails(ctl, 67, "set_permissions", "-p", vhost, missing, "", "", "")
    assert f"Virtual host {missing} does not exist" in fails(ctl, 69, "set_permissions", "-p", missing, user, "", "", "")
    fails(ctl, 69, "set_permissions", "-p", vhost, user, "(", "", "")
    assert f"Virtual host '{missing}' does not exist" in fails(ctl, 65, "list_permissions", "-p", missing)


def test_open_connections_feel_changed_permissions(
    ctl: Ctl, user: str, make_vhost: Callable[..., str], broker: BrokerAddress
):
    vhost = make_vhost()
    ctl("set_permissions", "-p", vhost, user, ".*", ".*", ".*")
    connection = pika.BlockingConnection(broker.parameters(user=user, password="secret", vhost=vhost))
    connection.channel().queue_declare("mine")
    ctl("set_permissions", "-p", vhost, user, "^$", "^$", "^$")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare("another")
    assert_closed(caught.value, 403, f"access to queue 'another' in vhost '{vhost}' refused for user '{user}'")
    connection.close()


def test_topic_permissions_are_set_listed_and_cleared(ctl: Ctl, user: str, make_vhost: Callable[..., str]):
    vhost = make_vhost()
    ctl("set_topic_permissions", "-p", vhost, user, "amq.topic", "^w", "^r")
    ctl("set_topic_permissions", "-p", vhost, user, "other", "^x", "^y")
    assert sorted(lines(ctl("-q", "list_topic_permissions", "-p", vhost))[1:]) == [
        [user, "amq.topic", "^w", "^r"],
        [user, "other", "^x", "^y"],
    ]
    assert [vhost, "other", "^x", "^y"] in lines(ctl("-q", "list_user_topic_permissions", user))
    ctl("clear_topic_permissions", "-p", vhost, user, "other")
    assert lines(ctl("-q", "list_topic_permissions", "-p", vhost))[1:] == [[user, "amq.topic", "^w", "^r"]]
    ctl("clear_topic_permissions", "-p", vhost, user)
    assert lines(ctl("-q", "list_topic_permissions", "-p", vhost)) == []


def test_user_limits_are_set_listed_and_cleared(ctl: Ctl, user: str):
    ctl("set_user_limits", user, '{"max-connections": 5, "max-channels": 7}')
    listed = ctl("-q", "list_user_limits", "--user", user)
    assert listed == '{"max-channels":7,"max-connections":5}\n'
    assert [user, listed.strip()] in lines(ctl("-q", "list_user_limits", "--global"))
    ctl("clear_user_limits", user, "max-channels")
    assert ctl("-q", "list_user_limits", "--user", user) == '{"max-connections":5}\n'
    ctl("clear_user_limits", user, "all")
    assert user not in ctl("-q", "list_user_limits", "--global")


def test_deleting_a_user_closes_its_connections(
    ctl: Ctl, user: str, make_vhost: Callable[..., str], broker: BrokerAddress
):
    vhost = make_vhost()
    ctl("set_permissions", "-p", vhost, user, ".*", ".*", ".*")
    connection = pika.BlockingConnection(broker.parameters(user=user, password="secret", vhost=vhost))
    ctl("delete_user", user)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(5)
    assert_closed(caught.value, 320, f"user '{user}' is deleted")
