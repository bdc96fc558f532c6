"""A broker that ends by kill -9 at a point of the hand-over that a test has named.

The points stand between each two steps of the giver and of the taker (transfer.py). The broker's own process reads the name from
a file when it comes to one; where it is that point, it removes the file and kills itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker_process import BrokerProcess, broker_command

GIVER = ("asked", "quiet", "closed", "given", "told")
TAKER = ("due", "claimed", "fenced", "read", "open")
SCRIPT = """
import functools
import inspect
import os
import runpy
import signal

from rabbitpy_broker import broker
from rabbitpy_broker.cluster import follower, member, takeover
from rabbitpy_broker.cluster.ownership import OwnerRecord
from rabbitpy_broker.cluster.transfer import HandOver


def at(point):
    try:
        with open({file!r}) as file:
            wanted = file.read()
    except FileNotFoundError:
        return
    if wanted == point:
        os.unlink({file!r})
        os.kill(os.getpid(), signal.SIGKILL)


def points(of, name, before="", behind=""):
    call = getattr(of, name)

    @functools.wraps(call)
    async def with_points(*args, **kwargs):
        at(before)
        result = await call(*args, **kwargs)
        at(behind)
        return result

    @functools.wraps(call)
    def with_points_at_once(*args, **kwargs):
        result = call(*args, **kwargs)
        at(behind)
        return result

    setattr(of, name, with_points if inspect.iscoroutinefunction(call) else with_points_at_once)


points(member.Replica, "hand_over", "asked")
points(broker.ReplicatedVHosts, "quiesce", behind="quiet")
points(HandOver, "complete", "closed", "told")
points(OwnerRecord, "give", behind="given")
points(member, "take_over", "due", "read")
points(OwnerRecord, "claim", behind="claimed")
points(follower, "append_fence", behind="fenced")
points(broker.ReplicatedVHosts, "open_owned", behind="open")
runpy.run_module("rabbitpy_broker", run_name="__main__")
"""


class PointedBroker(BrokerProcess):
    """A daemon with the points in it."""

    @property
    def point(self) -> Path:
        return self.directory / "point"

    def command(self) -> list[str]:
        script = self.directory / "points.py"
        script.write_text(SCRIPT.format(file=str(self.point)))
        return [sys.executable, str(script), *super().command()[len(broker_command()) :]]

    def die_at(self, point: str) -> None:
        """The next time that it comes there."""
        new = self.point.with_name("point.new")
        new.write_text(point)
        new.replace(self.point)

    def has_died(self) -> bool:
        if self.alive():
            return False
        self.process = None
        return True
