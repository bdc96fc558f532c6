"""What is done to the brokers, the engine's servers and the network between them, at random.

A trouble begins and ends at moments that the round has drawn, and several may go on at once. One that does not fit when its time
comes (its server is gone already) does nothing. What is done to PostgreSQL keeps to the rules of docs/cluster.md: a standby is
promoted when both can be asked which has more, nobody follows the former primary, and that one is built anew.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perf.cluster_kill.brokers import CTL_TIMEOUT_S, Broker
from perf.cluster_kill.network import CLIENTS, Network
from perf.engines.postgres import PostgresServers
from perf.engines.servers import Server, Servers
from perf.kill.ledger import Violation

OWNER_SHARE = 0.6  # how often what happens to a broker happens to the owner
AGAIN_S = 0.5
PATIENCE_S = 120.0


class Site:
    """All that can be troubled."""

    def __init__(
        self,
        network: Network,
        servers: Servers,
        brokers: Sequence[Broker],
        lease_s: float,
        vhost: str,
        only: Sequence[str] = (),
    ) -> None:
        """`only`: the kinds of trouble that there are, if not all."""
        self.network = network
        self.servers = servers
        self.brokers = list(brokers)
        self.lease_s = lease_s
        self.vhost = vhost
        self.only = only
        self.without_copy: Broker | None = None  # one whose copy was removed in this round: the others have to keep theirs
        self.done: Counter[str] = Counter()  # what became of what operators have asked for
        self.refused: list[str] = []  # and why it was refused
        self._operators: list[threading.Thread] = []
        self._violation: Violation | None = None

    def owner(self) -> Broker:
        """Whoever has said last that it owns the vhost; the first node if nobody has."""
        return max(self.brokers, key=lambda broker: [one["timestamp"] for one in broker.events("vhost owned", ever=True)][-1:])

    def take_overs(self) -> int:
        """How often the vhost was begun to be owned."""
        return sum(len(broker.events("vhost owned", ever=True)) for broker in self.brokers)

    def a_broker(self, rng: random.Random) -> Broker:
        return self.owner() if rng.random() < OWNER_SHARE else rng.choice(self.brokers)

    def operate(self, what: Callable[[], None]) -> None:
        """Does something that takes its time, and that may be waited for by `settle`."""

        def work() -> None:
            try:
                what()
            except Violation as violation:
                self._violation = self._violation or violation

        thread = threading.Thread(target=work, daemon=True)
        self._operators.append(thread)
        thread.start()

    def ask(self, broker: Broker, *command: str) -> bool:
        """Whether the node has done it; in a thread of `operate`."""
        try:
            broker.ctl(*command)
        except subprocess.CalledProcessError as error:
            self.refused.append(f"{broker.name}: {' '.join(command)}: {error.stderr.strip()[-300:]}")
            return False
        except subprocess.TimeoutExpired:
            self.refused.append(f"{broker.name}: {' '.join(command)}: no answer")
            return False
        return True

    def settle(self) -> None:
        """Returns when nobody operates any more. Raises `Violation`."""
        operators, self._operators = self._operators, []
        for thread in operators:
            thread.join(PATIENCE_S + CTL_TIMEOUT_S)
            if thread.is_alive():
                raise Violation("an operator's command does not end, though everything is well")
        self.check()

    def check(self) -> None:
        """Raises the first `Violation` that an operator has met."""
        if self._violation is not None:
            raise self._violation


class Trouble(ABC):
    """`begin` gives what it has done, for the report; "": nothing, as it did not fit."""

    kind: str

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site = site
        self.rng = rng

    @abstractmethod
    def begin(self) -> str: ...

    @abstractmethod
    def end(self) -> None: ...


class KillBrokers(Trouble):
    kind = "broker killed"
    count = 1

    def begin(self) -> str:
        first = self.site.a_broker(self.rng)
        others = self.rng.sample([one for one in self.site.brokers if one is not first], self.count - 1)
        self.killed = [one for one in (first, *others) if one.wanted]
        for broker in self.killed:
            broker.kill()
        return f"kill {', '.join(broker.name for broker in self.killed)}" if self.killed else ""

    def end(self) -> None:
        for broker in self.killed:
            if not broker.wanted:
                broker.start()


class KillAllBrokers(KillBrokers):
    kind = "all brokers killed"
    count = 3


class LoseCopy(KillBrokers):
    """A broker that is killed loses its directory of the vhost, as if its disk was replaced; one in a round."""

    kind = "copy lost"

    def begin(self) -> str:
        broker = self.site.a_broker(self.rng)
        self.killed = [broker] if broker.wanted and self.site.without_copy is None else []
        if not self.killed:
            return ""
        broker.kill()
        broker.lose_copies()
        self.site.without_copy = broker
        return f"kill {broker.name} and remove its copy"


class StopBroker(Trouble):
    """Also for much longer than a lease: whoever wakes then was taken over meanwhile."""

    kind = "broker stopped"

    def begin(self) -> str:
        self.broker = self.site.a_broker(self.rng)
        if not self.broker.running or self.broker.paused:
            return ""
        self.broker.pause()
        return f"stop {self.broker.name}"

    def end(self) -> None:
        if self.broker.paused:
            self.broker.resume()


class HandOver(Trouble):
    """Somebody asks a node, any of them, to have another one own the vhost: while other trouble goes on it may be refused."""

    kind = "handed over"

    def begin(self) -> str:
        asked = self.rng.choice(self.site.brokers)
        to = self.rng.choice([broker for broker in self.site.brokers if broker is not self.site.owner()])
        if not asked.running or asked.paused:
            return ""
        self.site.operate(lambda: self.ask(asked, to))
        return f"ask {asked.name} to hand over to {to.name}"

    def ask(self, asked: Broker, to: Broker) -> None:
        self.site.done[self.kind if self.site.ask(asked, "transfer_vhost", self.site.vhost, to.name) else "refused"] += 1

    def end(self) -> None:
        pass


class Drain(Trouble):
    """A node is put into maintenance, and taken out of it."""

    kind = "broker drained"

    def begin(self) -> str:
        self.broker = self.site.a_broker(self.rng)
        if not self.broker.running or self.broker.paused:
            return ""
        self.starts = self.broker.starts
        self.drained = threading.Event()
        self.site.operate(self.drain)
        return f"drain {self.broker.name}"

    def drain(self) -> None:
        try:
            self.site.done["drained" if self.site.ask(self.broker, "drain") else "not drained of all"] += 1
        finally:
            self.drained.set()

    def end(self) -> None:
        self.site.operate(self.revive)

    def revive(self) -> None:
        """A start is one, too."""
        self.drained.wait()
        until = time.monotonic() + PATIENCE_S
        while self.broker.starts == self.starts and not self.is_revived():
            if time.monotonic() > until:
                raise Violation(f"node {self.broker.name} cannot be revived: {self.site.refused[-1:]}")
            time.sleep(AGAIN_S)

    def is_revived(self) -> bool:
        return self.site.ask(self.broker, "revive")


class StopInOrder(Trouble):
    """SIGTERM, by which an owner hands over; and a start when it has ended."""

    kind = "broker stopped in order"

    def begin(self) -> str:
        self.broker = self.site.a_broker(self.rng)
        if not self.broker.is_up() or not self.broker.wanted:
            return ""
        self.broker.begin_stop()
        return f"stop {self.broker.name} in order"

    def end(self) -> None:
        self.site.operate(self.start)

    def start(self) -> None:
        self.broker.end_stop()
        self.broker.start()


class KillServer(Trouble):
    kind = "engine server killed"

    def begin(self) -> str:
        self.killed = [server for server in self.choose() if server.running]
        for server in self.killed:
            server.kill()
        return f"kill {', '.join(server.name for server in self.killed)}" if self.killed else ""

    def choose(self) -> list[Server]:
        return [self.rng.choice(self.site.servers.all)]

    def end(self) -> None:
        for server in self.killed:
            if not server.running:
                server.start()


class KillAllServers(KillServer):
    kind = "all engine servers killed"

    def choose(self) -> list[Server]:
        return list(self.site.servers.all)


class StopServer(Trouble):
    kind = "engine server stopped"

    def begin(self) -> str:
        self.stopped = [server for server in self.choose() if server.running and not server.paused]
        for server in self.stopped:
            server.pause()
        return f"stop {', '.join(server.name for server in self.stopped)}" if self.stopped else ""

    def choose(self) -> list[Server]:
        return [self.rng.choice(self.site.servers.all)]

    def end(self) -> None:
        for server in self.stopped:
            if server.running and server.paused:
                server.resume()


class StopQuorum(StopServer):
    kind = "engine quorum stopped"

    def choose(self) -> list[Server]:
        return list(self.site.servers.quorum())


class Cut(Trouble):
    """Between two; half of the times only in one direction."""

    kind = "pair cut"

    def begin(self) -> str:
        self.cuts = self.choose()
        for source, target in self.cuts:
            self.site.network.cut(source, target)
        return "cut " + ", ".join(f"{source}>{target}" for source, target in self.cuts)

    def choose(self) -> list[tuple[str, str]]:
        first, second = self.rng.sample(list(self.site.network.places), 2)
        return [(first, second), (second, first)][: self.rng.choice((1, 2))]

    def end(self) -> None:
        for source, target in self.cuts:
            self.site.network.mend(source, target)


class Isolate(Cut):
    """One from all others, both ways."""

    kind = "one cut from all"

    def choose(self) -> list[tuple[str, str]]:
        one = self.one()
        others = [name for name in self.site.network.places if name != one]
        return [pair for other in others for pair in ((one, other), (other, one))]

    def one(self) -> str:
        servers = [name for name in self.site.network.places if name != CLIENTS and not self._is_broker(name)]
        return self.rng.choice((self.site.a_broker(self.rng).name, self.rng.choice(servers)))

    def _is_broker(self, name: str) -> bool:
        return any(broker.name == name for broker in self.site.brokers)


class IsolateOneWay(Isolate):
    """It hears nobody, or nobody hears it."""

    kind = "one cut from all, one way"

    def choose(self) -> list[tuple[str, str]]:
        return super().choose()[self.rng.choice((0, 1)) :: 2]


class CutFromEngine(Isolate):
    """A broker still has its clients, and no engine."""

    kind = "broker cut from the engine"

    def choose(self) -> list[tuple[str, str]]:
        one = self.site.a_broker(self.rng).name
        servers = [name for name in self.site.network.places if name != CLIENTS and not self._is_broker(name)]
        return [pair for other in servers for pair in ((one, other), (other, one))]


class Promote(Trouble):
    """PostgreSQL's primary is gone, sleeps or is cut off, and a standby takes its place. It is for others to rebuild it."""

    kind = "standby promoted"

    def begin(self) -> str:
        servers = self.site.servers
        assert isinstance(servers, PostgresServers)
        former = self.former = servers.primary
        self.cuts: list[tuple[str, str]] = []
        how = self.rng.choice(("kill", "stop", "cut") if self.site.network.can_cut else ("kill", "stop"))
        if how == "kill":
            former.kill()
        elif how == "stop":
            former.pause()
        else:
            others = [name for name in self.site.network.places if name != former.name]
            self.cuts = [pair for other in others for pair in ((former.name, other), (other, former.name))]
            for source, target in self.cuts:
                self.site.network.cut(source, target)
        servers.promote(out_of_reach=how == "cut")
        return f"{how} {former.name}, promote {servers.primary.name}"

    def end(self) -> None:
        for source, target in self.cuts:
            self.site.network.mend(source, target)
        if self.former.paused:
            self.former.resume()


OF_BROKERS: tuple[type[Trouble], ...] = (
    KillBrokers, KillBrokers, KillBrokers, StopBroker, StopBroker, StopBroker, KillAllBrokers, LoseCopy,
    HandOver, HandOver, HandOver, Drain, Drain, StopInOrder, StopInOrder,
)  # fmt: skip
OF_SERVERS: tuple[type[Trouble], ...] = (
    KillServer, KillServer, StopServer, StopServer, StopQuorum, KillAllServers,
)  # fmt: skip
OF_NETWORK: tuple[type[Trouble], ...] = (Cut, Cut, Cut, Isolate, Isolate, IsolateOneWay, IsolateOneWay, CutFromEngine)
KINDS = sorted({kind.kind for kind in (*OF_BROKERS, *OF_SERVERS, *OF_NETWORK, Promote)})
PROMOTIONS = 0.25  # of the rounds; whoever promotes needs all standbys, so nothing else happens to them then


class Step(NamedTuple):
    """A moment of a round's plan."""

    at: float
    what: Callable[[], None]


def plan(site: Site, rng: random.Random, seconds: float, told: Callable[[str, str], None]) -> list[Step]:
    """The moments of a round, in order; `told` hears the kind of each trouble that begins, and what it was."""
    steps: list[Step] = []
    for trouble in draw(site, rng):
        steps += moments(trouble, rng.uniform(0, seconds), duration(rng, site.lease_s), told)
    return sorted(steps, key=lambda step: step.at)


def draw(site: Site, rng: random.Random) -> list[Trouble]:
    """What happens in a round; one kind is there as often as it stands in the lists."""
    count = rng.choice((1, 2, 2, 3, 4))
    if Promote in wanted(site, (Promote,)) and isinstance(site.servers, PostgresServers) and rng.random() < PROMOTIONS:
        return [Promote(site, rng), *(one(site, rng) for one in rng.choices(wanted(site, OF_BROKERS), k=count - 1))]
    kinds = wanted(site, (*OF_BROKERS, *OF_SERVERS, *(OF_NETWORK if site.network.can_cut else ())))
    return [one(site, rng) for one in rng.choices(kinds, k=count)]


def wanted(site: Site, kinds: Sequence[type[Trouble]]) -> list[type[Trouble]]:
    return [kind for kind in kinds if not site.only or kind.kind in site.only]


def duration(rng: random.Random, lease_s: float) -> float:
    """Seconds: a blink, about a lease, or much longer."""
    return rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 1.5) * lease_s, rng.uniform(1.5, 3.5) * lease_s))


def moments(trouble: Trouble, begin: float, seconds: float, told: Callable[[str, str], None]) -> list[Step]:
    begun: list[str] = []

    def start() -> None:
        what = trouble.begin()
        if what:
            begun.append(what)
            told(trouble.kind, f"{what} for {seconds:.1f} s")

    def end() -> None:
        if begun:
            trouble.end()

    return [Step(begin, start), Step(begin + seconds, end)]
