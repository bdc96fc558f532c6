"""Every kind of trouble is met by every client: the table says by which test, and this file that the table is whole."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from rabbitpy_broker.testing import Broker
from rabbitpy_broker.testing.trouble import Troubles

CLIENTS = ("pika", "aio_pika", "celery")
# kind of trouble -> the test that meets it with pika, with aio-pika, with Celery
MET: dict[str, tuple[str, str, str]] = {
    "drop": (
        "test_a_connection_is_dropped_at_a_publish_that_is_lost",
        "test_a_robust_connection_comes_back_after_a_drop",
        "test_a_publish_is_tried_again_after_a_drop",
    ),
    "half_open": (
        "test_a_half_open_connection_hears_nothing",
        "test_a_half_open_connection_confirms_nothing_until_it_is_given_up",
        "test_a_half_open_worker_hears_of_its_task_when_the_network_is_back",
    ),
    "delay": (
        "test_bytes_that_take_their_time",
        "test_bytes_that_take_their_time_or_break_off",
        "test_a_task_takes_as_long_as_its_bytes",
    ),
    "cut": (
        "test_a_frame_breaks_off_in_its_middle",
        "test_bytes_that_take_their_time_or_break_off",
        "test_a_task_that_breaks_off_on_its_way_to_the_worker_comes_again",
    ),
    "refuse_logins": ("test_logins_are_refused", "test_logins_are_refused", "test_a_refused_login_is_an_error"),
    "nack_publishes": (
        "test_publishes_are_nacked",
        "test_publishes_are_nacked_or_returned",
        "test_a_nacked_publish_is_an_error",
    ),
    "return_publishes": (
        "test_publishes_are_returned",
        "test_publishes_are_nacked_or_returned",
        "test_a_returned_task_is_an_error_if_it_is_mandatory_and_lost_if_not",
    ),
    "block": (
        "test_publishers_are_blocked_by_an_alarm",
        "test_a_blocked_publisher_waits",
        "test_a_blocked_task_waits",
    ),
    "fill_disk": (
        "test_what_needs_space_fails_on_a_full_disk",
        "test_a_blocked_publisher_waits",
        "test_a_blocked_task_waits",
    ),
    "cancel_consumers": (
        "test_a_consumer_is_cancelled",
        "test_a_consumer_is_cancelled",
        "test_a_worker_whose_consumer_is_cancelled_consumes_again",
    ),
    "redeliver": (
        "test_an_acked_message_comes_again",
        "test_an_acked_message_comes_again",
        "test_an_acked_task_runs_again",
    ),
    "kill": (
        "test_a_power_cut_keeps_what_was_confirmed_and_no_more",
        "test_a_robust_connection_comes_back_after_a_power_cut",
        "test_a_worker_comes_back_after_a_power_cut_with_its_tasks",
    ),
    "restart": (
        "test_a_restart_keeps_what_is_durable",
        "test_a_robust_connection_comes_back_after_a_restart",
        "test_a_worker_comes_back_after_a_restart",
    ),
}


def words(client: str) -> dict[str, set[str]]:
    """Of each test with this client: the attributes and the texts in it, and in what it is parametrized with."""
    tree = ast.parse((Path(__file__).parent / f"test_trouble_{client}.py").read_text(encoding="utf-8"))
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        test.name: {
            str(node.attr if isinstance(node, ast.Attribute) else node.value)
            for node in ast.walk(test)
            if isinstance(node, ast.Attribute | ast.Constant)
        }
        for test in tests
    }


def test_the_table_has_every_kind():
    kinds = {name for name, _ in inspect.getmembers(Troubles, inspect.isfunction) if not name.startswith("_")} - {"end_all"}
    assert set(MET) == kinds | {"kill", "restart"}
    assert hasattr(Broker, "kill")
    assert hasattr(Broker, "restart")


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_meets_every_kind(client: str):
    found = words(client)
    for kind, tests in MET.items():
        test = tests[CLIENTS.index(client)]
        assert kind in found.get(test, set()), f"{kind} with {client}: {test} does not bring it"
