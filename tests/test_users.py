"""Users: hashes as RabbitMQ has them, permissions with its meaning, changes that reach connections already open."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.limits import LimitError
from rabbitpy_broker.users import (
    _CACHE_ENTRIES,
    Permission,
    TopicPermission,
    UserError,
    Users,
    hash_password,
    verify_password,
)


@pytest.fixture
def definitions() -> Iterator[Definitions]:
    opened = Definitions(None)
    yield opened
    opened.close()


@pytest.fixture
def users(definitions: Definitions) -> Users:
    return Users(definitions)


# -- passwords --------------------------------------------------------------------------------------------------------


def test_a_hash_is_salt_and_digest_of_salt_and_password() -> None:
    raw = base64.b64decode(hash_password("pässword"))
    assert raw[4:] == hashlib.sha256(raw[:4] + "pässword".encode()).digest()


def test_two_hashes_of_a_password_differ() -> None:
    assert hash_password("secret") != hash_password("secret")


def test_the_hash_of_rabbitmqs_documentation_is_verified() -> None:
    """The worked example of RabbitMQ's page on passwords: salt 908D C60A, password test12."""
    assert verify_password(
        "test12", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "rabbit_password_hashing_sha256"
    )


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "md5"])
def test_each_of_rabbitmqs_algorithms_is_verified(algorithm: str) -> None:
    salted = base64.b64encode(
        b"\x01\x02\x03\x04" + hashlib.new(algorithm, b"\x01\x02\x03\x04secret").digest()
    ).decode()
    name = f"rabbit_password_hashing_{algorithm}"
    assert verify_password("secret", salted, name)
    assert not verify_password("Secret", salted, name)


@pytest.mark.parametrize("broken", ["", "x", "AAAA", "AAAAAA==", "no base64!", "ü", "AAAAAAAA" * 6])
def test_a_broken_hash_is_of_no_password(broken: str) -> None:
    assert not verify_password("", broken, "rabbit_password_hashing_sha256")
    assert not verify_password("secret", broken, "rabbit_password_hashing_sha256")


def test_an_unknown_algorithm_verifies_nothing() -> None:
    assert not verify_password("secret", hash_password("secret"), "rabbit_password_hashing_rot13")


# -- logging in -------------------------------------------------------------------------------------------------------


def test_only_the_right_password_logs_in(users: Users) -> None:
    anna = users.put_user("anna", "secret")
    assert users.authenticate("anna", "secret", False) is anna
    assert users.authenticate("anna", "secret ", False) is None
    assert users.authenticate("Anna", "secret", False) is None
    assert users.authenticate("", "", True) is None


def test_a_blank_password_never_logs_in(users: Users) -> None:
    users.put_user("blank", "")
    assert users.authenticate("blank", "", True) is None


def test_nobody_logs_in_by_the_hash_that_stands_in_for_unknown_users(users: Users) -> None:
    assert users.authenticate("absent", "nobody", True) is None
    assert users.authenticate("", "nobody", True) is None


def test_guest_logs_in_from_loopback_only(users: Users) -> None:
    guest = users.put_user("guest", "guest")
    assert users.authenticate("guest", "guest", True) is guest
    assert users.authenticate("guest", "guest", False) is None


def test_loopback_users_are_those_that_were_given(definitions: Definitions) -> None:
    users = Users(definitions, loopback_users=("anna",))
    for name in ("guest", "anna"):
        users.put_user(name, "secret")
    assert users.authenticate("guest", "secret", False) is not None
    assert users.authenticate("anna", "secret", False) is None


def test_a_name_or_password_with_a_lone_surrogate_is_just_wrong(users: Users) -> None:
    users.put_user("anna", "secret")
    assert users.authenticate("anna", "\udcff", False) is None
    assert users.authenticate("\udcff", "secret", False) is None


# -- permissions ------------------------------------------------------------------------------------------------------


def test_a_pattern_is_searched_anywhere_unless_anchored() -> None:
    permission = Permission("work", "^work", "^work$")
    assert permission.may("configure", "my-work-queue")
    assert not permission.may("write", "my-work")
    assert permission.may("write", "work-1")
    assert not permission.may("read", "work-1")
    assert permission.may("read", "work")


def test_the_empty_pattern_allows_nothing() -> None:
    permission = Permission("", "", "")
    assert not any(
        permission.may(operation, name) for operation in ("configure", "write", "read") for name in ("q", "")
    )


def test_the_default_exchange_is_checked_as_amq_default() -> None:
    permission = Permission("", r"^amq\.default$", "^$")
    assert permission.may("write", "")
    assert not permission.may("read", "")
    assert not permission.may("configure", "")


def test_the_cache_of_results_is_bounded_and_right() -> None:
    permission = Permission("[02468]$", "", "")
    for _ in range(2):
        for number in range(3 * _CACHE_ENTRIES):
            assert permission.may("configure", f"amq.gen-{number}") is (number % 2 == 0)
    assert len(permission._matches["configure"]._cache) <= _CACHE_ENTRIES


def test_a_pattern_that_is_none_is_refused_and_changes_nothing(
    users: Users, definitions: Definitions
) -> None:
    anna = users.put_user("anna", "secret")
    users.set_permissions("anna", "/", ".*", ".*", ".*")
    version = anna.version
    with pytest.raises(UserError, match="'\\*' is no regular expression"):
        users.set_permissions("anna", "/", ".*", "*", ".*")
    assert anna.permissions["/"].may("write", "anything")
    assert anna.version == version
    assert definitions.permissions() == [("anna", "/", ".*", ".*", ".*")]


def test_changes_are_seen_by_who_holds_the_user(users: Users) -> None:
    anna = users.put_user("anna", "secret")
    assert anna.permissions.get("/") is None
    versions = [anna.version]
    users.set_permissions("anna", "/", "", "", ".*")
    versions.append(anna.version)
    assert anna.permissions["/"].may("read", "q")
    users.set_permissions("anna", "/", "", "", "")
    versions.append(anna.version)
    assert not anna.permissions["/"].may("read", "q")
    users.clear_permissions("anna", "/")
    versions.append(anna.version)
    assert anna.permissions.get("/") is None
    assert users.put_user("anna", "other", ["monitoring"]) is anna
    versions.append(anna.version)
    assert anna.tags == ("monitoring",)
    users.set_permissions("anna", "/", ".*", ".*", ".*")
    users.delete_user("anna")
    versions.append(anna.version)
    assert anna.permissions == {}
    assert anna.tags == ()
    assert versions == sorted(set(versions))
    assert users.get("anna") is None
    assert users.authenticate("anna", "other", True) is None


def test_a_deleted_vhost_is_forgotten(users: Users, definitions: Definitions) -> None:
    anna = users.put_user("anna", "secret")
    for vhost in ("/", "other"):
        users.set_permissions("anna", vhost, ".*", ".*", ".*")
    users.forget_vhost("other")
    assert list(anna.permissions) == ["/"]
    assert definitions.permissions() == [("anna", "/", ".*", ".*", ".*")]


def test_what_makes_no_sense_is_refused(users: Users) -> None:
    with pytest.raises(UserError, match="needs a name"):
        users.put_user("", "secret")
    with pytest.raises(UserError, match="comma"):
        users.put_user("anna", "secret", ["a,b"])
    with pytest.raises(UserError, match="unknown hashing algorithm 'rot13'"):
        users.put_user_hash("anna", "", "rot13")
    for change in (
        lambda: users.set_permissions("anna", "/", "", "", ""),
        lambda: users.set_topic_permissions("anna", "/", "amq.topic", "", ""),
        lambda: users.clear_topic_permissions("anna", "/"),
        lambda: users.change_password("anna", "secret"),
        lambda: users.clear_password("anna"),
        lambda: users.set_tags("anna", ["monitoring"]),
        lambda: users.set_limits("anna", {}),
        lambda: users.clear_limits("anna"),
    ):
        with pytest.raises(UserError, match="User 'anna' does not exist"):
            change()
    assert users.all() == []


# -- passwords and tags that change -----------------------------------------------------------------------------------


def test_a_changed_password_is_the_only_one(users: Users, definitions: Definitions) -> None:
    anna = users.put_user("anna", "old", ["monitoring"])
    version = anna.version
    users.change_password("anna", "new")
    assert users.authenticate("anna", "old", True) is None
    assert users.authenticate("anna", "new", True) is anna
    assert anna.version > version
    assert anna.tags == ("monitoring",)
    assert definitions.users() == [("anna", anna.password_hash, "rabbit_password_hashing_sha256", "monitoring")]


def test_a_user_without_a_password_cannot_log_in_by_one(users: Users, definitions: Definitions) -> None:
    anna = users.put_user("anna", "secret")
    version = anna.version
    users.clear_password("anna")
    assert anna.version > version
    assert users.authenticate("anna", "secret", True) is None
    assert users.authenticate("anna", "", True) is None
    assert definitions.users() == [("anna", "", "rabbit_password_hashing_sha256", "")]


def test_tags_keep_their_order_and_come_once(users: Users, definitions: Definitions) -> None:
    anna = users.put_user("anna", "secret")
    version = anna.version
    users.set_tags("anna", ["policymaker", "administrator", "policymaker"])
    assert anna.tags == ("policymaker", "administrator")
    assert anna.version > version
    assert definitions.users()[0][3] == "policymaker,administrator"
    for bad in ("", "a,b"):
        with pytest.raises(UserError, match="empty or has a comma"):
            users.set_tags("anna", [bad])
    assert anna.tags == ("policymaker", "administrator")


# -- topic permissions ------------------------------------------------------------------------------------------------


def test_a_topic_permission_knows_the_user_and_the_vhost() -> None:
    permission = TopicPermission(r"^{username}\.{vhost}\.{username}$", "^{client_id}$", "anna", "live")
    assert permission.may("write", "anna.live.anna")
    assert not permission.may("write", "anna.other.anna")
    assert permission.may("read", "{client_id}")
    assert not permission.may("read", "anna")


def test_the_empty_topic_pattern_allows_the_empty_key_only() -> None:
    permission = TopicPermission("", "", "anna", "/")
    for operation in ("write", "read"):
        assert permission.may(operation, "")
        assert not permission.may(operation, "key")


def test_topic_permissions_come_and_go(users: Users, definitions: Definitions) -> None:
    anna = users.put_user("anna", "secret")
    versions = [anna.version]
    for vhost, exchange in (("/", "a"), ("/", "b"), ("other", "a")):
        users.set_topic_permissions("anna", vhost, exchange, "^w", "^r")
        versions.append(anna.version)
    users.set_topic_permissions("anna", "/", "a", "^v", "^r")
    assert anna.topic_permissions["/"]["a"].may("write", "v")
    assert definitions.topic_permissions() == [
        ("anna", "/", "a", "^v", "^r"),
        ("anna", "/", "b", "^w", "^r"),
        ("anna", "other", "a", "^w", "^r"),
    ]
    users.clear_topic_permissions("anna", "/", "absent")
    users.clear_topic_permissions("anna", "/", "a")
    versions.append(anna.version)
    assert list(anna.topic_permissions["/"]) == ["b"]
    users.clear_topic_permissions("anna", "/")
    versions.append(anna.version)
    assert list(anna.topic_permissions) == ["other"]
    users.forget_vhost("other")
    versions.append(anna.version)
    assert anna.topic_permissions == {}
    assert definitions.topic_permissions() == []
    assert versions == sorted(set(versions))


def test_permissions_and_topic_permissions_are_cleared_each_for_itself(users: Users) -> None:
    anna = users.put_user("anna", "secret")
    users.set_permissions("anna", "/", ".*", ".*", ".*")
    users.set_topic_permissions("anna", "/", "a", "^w", "^r")
    users.clear_permissions("anna", "/")
    assert list(anna.topic_permissions["/"]) == ["a"]


def test_a_topic_pattern_that_is_none_is_refused_and_changes_nothing(users: Users, definitions: Definitions) -> None:
    anna = users.put_user("anna", "secret")
    users.set_topic_permissions("anna", "/", "a", "^w", "^r")
    version = anna.version
    for write, read in (("(", ""), ("", "(")):
        with pytest.raises(UserError, match=r"'\(' is no regular expression"):
            users.set_topic_permissions("anna", "/", "a", write, read)
    assert anna.version == version
    assert definitions.topic_permissions() == [("anna", "/", "a", "^w", "^r")]


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_leaves_the_others_as_they_are(users: Users, definitions: Definitions) -> None:
    anna = users.put_user("anna", "secret")
    assert (anna.max_connections, anna.max_channels) == (-1, -1)
    users.set_limits("anna", {"max-connections": 3})
    users.set_limits("anna", {"max-channels": 0})
    assert (anna.max_connections, anna.max_channels) == (3, 0)
    assert definitions.user_limits() == [("anna", '{"max-connections": 3, "max-channels": 0}')]
    users.clear_limits("anna", "max-connections")
    assert (anna.max_connections, anna.max_channels) == (-1, 0)
    users.clear_limits("anna")
    assert (anna.max_connections, anna.max_channels) == (-1, -1)
    assert definitions.user_limits() == []


@pytest.mark.parametrize(
    "limits, text",
    [
        ({"max-queues": 1}, 'Unrecognised terms [{<<"max-queues">>,1}] in user-limits'),
        ({"max-channels": "x"}, 'max-channels should be a number, actually was <<"x">>'),
        ({"max-channels": 1.5}, "max-channels should be a number, actually was 1.5"),
        ({"max-channels": True}, "max-channels should be a number, actually was true"),
    ],
)
def test_a_bad_limit_is_refused_and_changes_nothing(users: Users, limits: dict[str, object], text: str) -> None:
    anna = users.put_user("anna", "secret")
    users.set_limits("anna", {"max-channels": 5})
    with pytest.raises(LimitError) as caught:
        users.set_limits("anna", {"max-connections": 1, **limits})
    assert str(caught.value) == text
    assert anna.limits == {"max-channels": 5}


# -- keeping ----------------------------------------------------------------------------------------------------------


def test_users_and_permissions_come_back(tmp_path: Path) -> None:
    definitions = Definitions(tmp_path / "definitions.sqlite")
    users = Users(definitions)
    users.put_user("anna", "secret", ["monitoring", "administrator"])
    users.set_permissions("anna", "/", "^a", "^b", "")
    users.set_topic_permissions("anna", "/", "amq.topic", "^{username}", "^{vhost}")
    users.set_limits("anna", {"max-channels": 7})
    users.put_user("no-tags", "secret")
    definitions.close()
    definitions = Definitions(tmp_path / "definitions.sqlite")
    users = Users(definitions)
    anna = users.authenticate("anna", "secret", False)
    assert anna is not None
    assert anna.tags == ("monitoring", "administrator")
    assert anna.permissions["/"].may("configure", "abc")
    assert not anna.permissions["/"].may("read", "abc")
    topics = anna.topic_permissions["/"]["amq.topic"]
    assert (topics.write, topics.read) == ("^{username}", "^{vhost}")
    assert topics.may("write", "anna.1")
    assert topics.may("read", "/")
    assert (anna.max_connections, anna.max_channels) == (-1, 7)
    assert [user.tags for user in users.all() if user.name == "no-tags"] == [()]
    definitions.close()


def test_a_password_is_nowhere_in_the_file(tmp_path: Path) -> None:
    definitions = Definitions(tmp_path / "definitions.sqlite")
    Users(definitions).put_user("anna", "Tr0ub4dor-and-3")
    definitions.close()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"anna" in files
    assert b"Tr0ub4dor" not in files


def test_a_pattern_in_the_file_that_cannot_be_used_stops_the_start(definitions: Definitions) -> None:
    definitions.put_user("anna", "hash", "rabbit_password_hashing_sha256", "")
    definitions.put_permission("anna", "/", ".*", "(", ".*")
    with pytest.raises(
        StartError, match="permissions of user 'anna' in vhost '/': '\\(' is no regular expression"
    ):
        Users(definitions)


def test_a_topic_pattern_in_the_file_that_cannot_be_used_stops_the_start(definitions: Definitions) -> None:
    definitions.put_user("anna", "hash", "rabbit_password_hashing_sha256", "")
    definitions.put_topic_permission("anna", "/", "amq.topic", "(", "")
    with pytest.raises(StartError, match="topic permissions of user 'anna' in vhost '/': '\\(' is no regular"):
        Users(definitions)


def test_defaults_are_made_once_only(definitions: Definitions) -> None:
    users = Users(definitions)
    assert users.create_defaults("guest", "guest", "/")
    guest = users.get("guest")
    assert guest is not None
    assert guest.tags == ("administrator",)
    assert guest.permissions["/"].may("configure", "anything")
    assert definitions.vhosts() == ["/"]
    users.delete_user("guest")
    assert not Users(definitions).create_defaults("guest", "guest", "/")
    assert definitions.users() == []


def test_defaults_take_what_they_are_given(definitions: Definitions) -> None:
    users = Users(definitions)
    users.create_defaults(
        "app", "secret", "live", tags=("monitoring",), configure="", write="^out", read="^in"
    )
    app = users.authenticate("app", "secret", False)
    assert app is not None
    assert definitions.permissions() == [("app", "live", "", "^out", "^in")]
    assert app.tags == ("monitoring",)
