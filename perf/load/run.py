"""One run of the load generator, from declaring the queues to the report.

This process declares, starts the workers, lets them begin together and adds up their samples. It is idle while they
work: what it costs does not matter, what they cost does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait

from pamqp import commands

from perf.load.client import Client, Refused
from perf.load.plan import SECOND_NS, Plan
from perf.load.report import Report, Row, Tally
from perf.load.worker import Failed, Finished, Ready, Sample, Start, Stop, serve

# The workers get the word this long before they begin.
START_DELAY_NS = 50_000_000
READY_TIMEOUT = 120.0
# A broker that answers later than this after the end of the schedule counts as hanging.
GRACE_NS = 30 * SECOND_NS


class RunFailed(Exception):
    """The run has no result; the text says why."""


def run(plan: Plan, compiled: bool, on_row: Callable[[Row], None] | None = None) -> Report:
    """Runs the plan; `on_row` is given each interval's figures as they come. Raises RunFailed."""
    try:
        with declared(plan), workers(plan) as pipes:
            return Run(plan, pipes, compiled, on_row).report()
    except Refused as error:
        raise RunFailed(str(error)) from None


@contextlib.contextmanager
def declared(plan: Plan) -> Iterator[None]:
    """The queues, their exchange and bindings; deleted at the end unless they are to be kept."""
    with Client(plan.address, "perf.load setup") as client:
        client.open_channel(1)
        if not plan.predeclared:
            declare(client, plan)
    yield
    if plan.keep:
        return
    with Client(plan.address, "perf.load clean-up") as client:
        client.open_channel(1)
        for queue in plan.queue_names:
            client.call(1, commands.Queue.Delete(0, queue), commands.Queue.DeleteOk)
        if plan.owns_exchange and not plan.predeclared:
            client.call(1, commands.Exchange.Delete(0, plan.exchange), commands.Exchange.DeleteOk)


def declare(client: Client, plan: Plan) -> None:
    if plan.owns_exchange:
        exchange = commands.Exchange.Declare(0, plan.exchange, plan.exchange_type, durable=plan.durable)
        client.call(1, exchange, commands.Exchange.DeclareOk)
    for queue in plan.queue_names:
        method = commands.Queue.Declare(0, queue, durable=plan.durable, arguments=plan.queue_arguments)
        client.call(1, method, commands.Queue.DeclareOk)
        if plan.exchange:
            binding_key = queue if plan.binding_key is None else plan.binding_key
            client.call(1, commands.Queue.Bind(0, queue, plan.exchange, binding_key), commands.Queue.BindOk)


@contextlib.contextmanager
def workers(plan: Plan) -> Iterator[list[Connection]]:
    """The started processes' pipes; consumers' first, for they must consume before anything is published."""
    # Forked processes have the compiled engine that this one loaded; there is one thread here, so forking is safe.
    context = multiprocessing.get_context("fork")
    processes, pipes = [], []
    for is_producing, count in ((False, plan.consumers), (True, plan.producers)):
        for share in shares(count, plan.processes):
            ours, theirs = context.Pipe()
            arguments = (plan, share, [], theirs) if is_producing else (plan, [], share, theirs)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.terminate()
                process.join()


def shares(count: int, processes: int) -> list[list[int]]:
    """The numbers below `count`, dealt out to at most that many processes."""
    return [list(range(first, count, processes)) for first in range(min(count, processes))]


class Run:
    """The samples of the workers as they come in, and the figures made of them."""

    def __init__(
        self, plan: Plan, pipes: list[Connection], compiled: bool, on_row: Callable[[Row], None] | None
    ) -> None:
        self.plan = plan
        self.pipes = pipes
        self.compiled = compiled
        self.on_row = on_row
        self.server = ""
        self.start_ns = 0
        self.first: dict[Connection, Sample] = {}  # the sample that the measurement counts from
        self.latest: dict[Connection, Sample] = {}
        self.total = Tally()
        self.rows: dict[int, Row] = {}
        self.reports: dict[int, int] = {}  # how many workers have told their part of a row
        self.next_row = 0

    def report(self) -> Report:
        self._wait_until_ready()
        self.start_ns = time.monotonic_ns() + START_DELAY_NS
        for pipe in self.pipes:
            pipe.send(Start(self.start_ns))
        complete = self._collect()
        return self._result(complete)

    def _wait_until_ready(self) -> None:
        for pipe in self.pipes:
            if not pipe.poll(READY_TIMEOUT):
                raise RunFailed("the broker took too long to open the connections")
            said = self._receive(pipe)
            assert isinstance(said, Ready)
            self.server = said.server

    def _receive(self, pipe: Connection) -> object:
        try:
            said: object = pipe.recv()
        except EOFError:
            raise RunFailed("a process of the load generator died") from None
        if isinstance(said, Failed):
            raise RunFailed(said.text)
        return said

    def _collect(self) -> bool:
        """Takes in samples until every worker has finished; whether the number of messages, if any, was reached."""
        plan = self.plan
        open_pipes = set(self.pipes)
        complete = plan.messages == 0
        stopped = False
        end_ns = self.start_ns + int((plan.warmup + plan.seconds) * SECOND_NS)
        while open_pipes:
            now = time.monotonic_ns()
            if now > end_ns + GRACE_NS:
                raise RunFailed("the broker hangs: the run did not end in time")
            for pipe in wait(list(open_pipes), 0.1):
                assert isinstance(pipe, Connection)
                said = self._receive(pipe)
                if isinstance(said, Finished):
                    open_pipes.remove(pipe)
                elif isinstance(said, Sample):
                    self._take(pipe, said)
            if plan.messages and not stopped:
                complete = self._is_through()
                if complete or now > end_ns:
                    stopped = True
                    self._stop(open_pipes)
        return complete

    def _stop(self, pipes: set[Connection]) -> None:
        for pipe in pipes:
            with contextlib.suppress(
                BrokenPipeError
            ):  # it has just ended by itself, and its Finished is on the way
                pipe.send(Stop())

    def _is_through(self) -> bool:
        if len(self.latest) < len(self.pipes) or not all(sample.is_done for sample in self.latest.values()):
            return False
        return sum(sample.received for sample in self.latest.values()) >= self.plan.expected

    def _take(self, pipe: Connection, sample: Sample) -> None:
        """Adds what is new in a sample to its row and, after the warm-up, to the total."""
        previous = self.latest.get(pipe)
        self.latest[pipe] = sample
        if previous is None:
            self.first[pipe] = sample
            return
        since_warmup = (previous.time_ns - self.start_ns) / SECOND_NS - self.plan.warmup
        if since_warmup < -0.001 and self.plan.warmup:
            self.first[pipe] = sample
            return
        number = round(since_warmup / self.plan.interval) if not self.plan.messages else int(since_warmup)
        row = self.rows.setdefault(number, Row((number + 1) * self.plan.interval))
        row.tally.add(previous, sample)
        self.total.add(previous, sample)
        if not self.plan.messages:
            self.reports[number] = self.reports.get(number, 0) + 1
            if self.reports[number] == len(self.pipes) and self.on_row:
                self.on_row(row)

    def _result(self, complete: bool) -> Report:
        if self.plan.messages:
            last_ns = max(sample.last_ns or sample.time_ns for sample in self.latest.values())
            seconds = max(last_ns - self.start_ns, 1) / SECOND_NS
        else:
            spans = [self.latest[pipe].time_ns - self.first[pipe].time_ns for pipe in self.pipes]
            seconds = sum(spans) / len(spans) / SECOND_NS
        rows = [self.rows[number] for number in sorted(self.rows)]
        return Report(self.plan, self.server, self.compiled, complete, seconds, self.total, rows)
