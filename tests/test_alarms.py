"""Alarms: on above and below their limits, with RabbitMQ's words, and the reader of the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rabbitpy_broker.alarms import Alarms, disk_free


class Machine:
    """Figures to turn by hand."""

    def __init__(self) -> None:
        self.memory: int | None = 50
        self.disk: int | None = 500
        self.free_inside = 0
        self.given_back = 0

    def read_memory(self) -> int:
        if self.memory is None:
            raise OSError(24, "Too many open files")
        return self.memory

    def read_disk(self) -> int:
        if self.disk is None:
            raise FileNotFoundError
        return self.disk

    def give_back(self) -> None:
        assert self.memory is not None
        self.memory -= self.free_inside
        self.free_inside = 0
        self.given_back += 1

    def alarms(self, memory_limit: int = 100, disk_limit: int = 100) -> Alarms:
        return Alarms(memory_limit, disk_limit, self.read_memory, self.read_disk, self.give_back)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_no_alarm_while_there_is_enough(machine: Machine) -> None:
    alarms = machine.alarms()
    assert not alarms.check()
    assert alarms.active == set()
    assert alarms.reason() == ""
    assert (alarms.memory_used, alarms.disk_free) == (50, 500)


def test_at_the_limit_there_is_no_alarm_yet(machine: Machine) -> None:
    machine.memory, machine.disk = 100, 100
    assert not machine.alarms().check()


def test_a_check_says_when_something_changed(machine: Machine) -> None:
    alarms = machine.alarms()
    machine.memory = 101
    assert alarms.check()
    assert not alarms.check()
    machine.memory = 100
    assert alarms.check()
    assert alarms.active == set()


def test_memory_that_is_free_inside_the_process_is_given_back_before_an_alarm(machine: Machine) -> None:
    alarms = machine.alarms()
    machine.memory, machine.free_inside = 120, 30
    assert not alarms.check()
    assert (alarms.active, alarms.memory_used) == (set(), 90)
    machine.memory, machine.free_inside = 120, 10
    assert alarms.check()
    assert (alarms.active, alarms.memory_used) == ({"memory"}, 110)


def test_nothing_is_given_back_below_the_limit_nor_by_each_check_of_an_alarm(machine: Machine) -> None:
    """That walks the whole heap."""
    alarms = machine.alarms()
    alarms.check()
    assert machine.given_back == 0
    machine.memory = 120
    alarms.check()
    alarms.check()
    assert machine.given_back == 1


def test_one_alarm_may_take_over_from_the_other(machine: Machine) -> None:
    alarms = machine.alarms()
    machine.memory = 101
    alarms.check()
    machine.memory, machine.disk = 50, 99
    assert alarms.check()
    assert alarms.active == {"disk"}


def test_reasons_are_rabbitmqs(machine: Machine) -> None:
    alarms = machine.alarms()
    machine.memory = 101
    alarms.check()
    assert alarms.reason() == "low on memory"
    machine.disk = 99
    alarms.check()
    assert alarms.reason() == "low on disk & memory"
    machine.memory = 50
    alarms.check()
    assert alarms.reason() == "low on disk"


def test_limits_change_while_it_runs(machine: Machine) -> None:
    alarms = machine.alarms()
    alarms.set_memory_limit(49)
    alarms.set_disk_limit(501)
    assert alarms.check()
    assert alarms.active == {"memory", "disk"}
    alarms.set_memory_limit(50)
    alarms.set_disk_limit(500)
    assert alarms.check()
    assert alarms.active == set()


def test_limits_of_zero(machine: Machine) -> None:
    """No disk is too full for 0, any memory is too much for it."""
    machine.disk = 0
    alarms = machine.alarms(memory_limit=0, disk_limit=0)
    alarms.check()
    assert alarms.active == {"memory"}


def test_a_disk_that_cannot_be_asked_is_full(machine: Machine) -> None:
    alarms = machine.alarms()
    machine.disk = None
    assert alarms.check()
    assert alarms.active == {"disk"}


def test_a_store_that_cannot_write_sets_the_disk_alarm_until_it_can(machine: Machine) -> None:
    alarms = machine.alarms(disk_limit=0)
    alarms.store_failed("No space left on device")
    assert alarms.active == set()  # with the next check, which tells the connections
    assert alarms.check()
    assert alarms.active == {"disk"}
    assert alarms.reason() == "low on disk"
    assert alarms.store_failures == {"": "No space left on device"}
    alarms.store_failed("Input/output error")
    assert not alarms.check()
    assert alarms.store_failures == {"": "Input/output error"}
    alarms.store_recovered()
    assert alarms.check()
    assert alarms.active == set()


def test_the_disk_alarm_stays_while_any_store_cannot_write(machine: Machine) -> None:
    alarms = machine.alarms()
    alarms.store_failed("Input/output error", "a")
    alarms.store_failed("Input/output error", "b")
    assert alarms.check()
    alarms.store_recovered("a")
    alarms.store_recovered("never failed")
    assert not alarms.check()
    alarms.store_recovered("b")
    assert alarms.check()
    assert alarms.active == set()


def test_a_full_disk_keeps_the_alarm_of_a_recovered_store(machine: Machine) -> None:
    alarms = machine.alarms()
    alarms.store_failed("No space left on device")
    machine.disk = 99
    alarms.check()
    alarms.store_recovered()
    assert not alarms.check()
    assert alarms.active == {"disk"}


def test_memory_that_cannot_be_read_does_not_hide_a_store_that_cannot_write(machine: Machine) -> None:
    alarms = machine.alarms()
    machine.memory = 101
    alarms.check()
    machine.memory = None
    with pytest.raises(OSError, match="Too many open files"):
        alarms.check()
    alarms.store_failed("Too many open files")
    assert alarms.check()
    assert alarms.active == {"disk", "memory"}
    assert alarms.memory_used == 101


def test_disk_free_is_what_the_system_says(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    assert disk_free(tmp_path) == pytest.approx(status.f_bavail * status.f_frsize, abs=1_000_000_000)
