"""What a run measures, and in which order: the paper's set-up in numbers, the targets, and the run's settings.

Each repetition goes through all queue counts, and at each count every target is measured in turn, so that whatever else the
machine does falls on each of them alike. Every other repetition takes the targets the other way round: who comes after
whom does not favour anybody.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from rabbitpy_broker.pipeline.sweep.published import DRIVER_NAMES

SIZE = 1500
# for each queue
PRODUCERS = 2
CONSUMERS = 3
# for each of those connections
PRODUCER_CHANNELS = 2
CONSUMER_CHANNELS = 3
ONE_EXCHANGE_UP_TO = 15  # queues; above there are two exchanges

QUEUE_COUNTS = (1, 2, 3, 4, 5, 8, 10, 15, 20, 30)
MODES = ("persist", "consumer-ack", "consumer-ack-light")
DRIVERS = tuple(DRIVER_NAMES)
RABBITPY, RABBITMQ = "rabbitpy", "rabbitmq"
BEFORE = "before"  # another build of rabbitpy-broker
RABBITMQ_MODE = "default"
# What a measurement takes beside its time: connections, the JVM's start, deleting. For the estimate only.
OVERHEAD_S = 3.0
CALM_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Target:
    """A broker, and the mode its queues are declared with."""

    broker: str
    mode: str

    @property
    def queue_arguments(self) -> dict[str, Any]:
        return {} if self.broker == RABBITMQ else {"x-confirm-mode": self.mode}

    @property
    def title(self) -> str:
        return self.broker if self.broker == RABBITMQ else f"{self.broker} {self.mode}"


@dataclasses.dataclass(frozen=True)
class Measurement:
    target: Target
    driver: str
    queues: int
    repetition: int


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a run. `seconds` follow the `warmup`; samples of both are kept."""

    queues: tuple[int, ...] = QUEUE_COUNTS
    drivers: tuple[str, ...] = DRIVERS
    modes: tuple[str, ...] = MODES
    rabbitmq: bool = True
    before: bool = False
    repetitions: int = 3
    calm: float | None = None  # per cent of the CPU time that the host may take; else it is measured again
    seconds: float = 10.0
    warmup: float = 3.0
    confirm: int = 200  # unconfirmed publishes of a channel, at most
    prefetch: int = 100
    # Else PerfTest's JVM compiles for most of a minute, at the cost of whatever else would use the cores.
    jvm_options: tuple[str, ...] = ("-XX:TieredStopAtLevel=1",)

    @property
    def targets(self) -> list[Target]:
        builds = (RABBITPY, BEFORE) if self.before else (RABBITPY,)
        ours = [Target(build, mode) for mode in self.modes for build in builds]
        return [*ours, Target(RABBITMQ, RABBITMQ_MODE)] if self.rabbitmq else ours

    def measurements(self) -> list[Measurement]:
        found = []
        for repetition in range(1, self.repetitions + 1):
            order = self.targets if repetition % 2 else self.targets[::-1]
            for queues, driver in itertools.product(self.queues, self.drivers):
                found += [Measurement(target, driver, queues, repetition) for target in order]
        return found

    def estimated_s(self) -> float:
        return len(self.measurements()) * (self.warmup + self.seconds + OVERHEAD_S)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Settings:
        """The settings that a run file holds. Raises TypeError for names that are not theirs."""
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        values: dict[str, Any] = {**given, **lists}
        return cls(**values)


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"queues": (1, 2, 4, 15, 30), "repetitions": 1, "seconds": 4.0, "warmup": 2.0},
    "full": {"queues": QUEUE_COUNTS, "repetitions": 3, "seconds": 600.0, "warmup": 60.0, "jvm_options": ()},
}


@dataclasses.dataclass(frozen=True)
class Group:
    """An exchange with its queues; each queue is bound by its name."""

    exchange: str
    queue_prefix: str
    queues: int

    @property
    def queue_names(self) -> list[str]:
        return [f"{self.queue_prefix}-{number}" for number in range(self.queues)]


def groups(queues: int, name: str) -> list[Group]:
    """So many queues on one exchange, or from 16 on in halves on two."""
    if queues <= ONE_EXCHANGE_UP_TO:
        return [Group(f"{name}-a", f"{name}-a", queues)]
    half = queues - queues // 2
    return [Group(f"{name}-a", f"{name}-a", half), Group(f"{name}-b", f"{name}-b", queues - half)]


@dataclasses.dataclass(frozen=True)
class Job:
    """What a driver is given: where to connect, the declared groups, and how long to go on."""

    url: str
    groups: list[Group]
    seconds: float  # with the warm-up
    confirm: int
    prefetch: int
    jvm_options: tuple[str, ...] = ()


class MeasurementFailed(Exception):
    """A measurement did not come to its end; the text says why."""
