"""`rabbitpy-ctl migrate` and `rabbitpy-ctl shovel`: they ask two brokers over the network, and no control socket.

Exit codes: 0 when everything has arrived; 65 when the target does not take everything and nobody has said `--skip-refused`,
or what has arrived is not what was sent; 69 when a broker refuses or cannot be reached.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.shovel.management_client import Management
from rabbitpy_broker.shovel.migration import Migration, Moved, Plan, QueueToMove, make_plan
from rabbitpy_broker.shovel.peer import Url, parse_url
from rabbitpy_broker.shovel.shovel import Shovel, Tally, Target

HERE: Final = "amqp://guest:guest@127.0.0.1:5672"


class AmqpUrl(click.ParamType):  # type: ignore[type-arg]
    """An AMQP URL on the command line."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if isinstance(value, Url) else parse_url(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


RATE: Final = click.option("--rate", type=float, default=0.0, metavar="N", help="At most so many messages a second.")
PREFETCH: Final = click.option(
    "--prefetch", type=click.IntRange(1, 65535), default=1000, help="Messages of a queue that are on their way."
)
PATIENCE: Final = click.option(
    "--patience", type=float, default=60.0, metavar="S", help="Give a queue up when nothing has moved for so long."
)


@click.command("migrate")
@click.argument("source", type=AmqpUrl())
@click.option("--management", metavar="URL", help="The source's HTTP API. [default: port 15672 of the source]")
@click.option("--to", "target", type=AmqpUrl(), default=HERE, help="The broker to move to. [default: the one on this machine]")
@click.option("--to-management", metavar="URL", help="Its HTTP API. [default: port 15672 of it]")
@click.option("--queue", "queues", multiple=True, metavar="PATTERN", help="Only queues like this (* and ?); may be repeated.")
@click.option("-p", "--vhost", "vhosts", multiple=True, metavar="VHOST", help="Only queues of this vhost; may be repeated.")
@click.option("--definitions/--no-definitions", default=True, help="Whether definitions are moved. [default: yes]")
@click.option("--messages/--no-messages", default=True, help="Whether messages are moved. [default: yes]")
@click.option("--parallel", type=click.IntRange(1, 64), default=4, help="Queues at a time. [default: 4]")
@click.option("--state", type=click.Path(path_type=Path), metavar="FILE", help="Keep count of what was moved, over several runs.")
@click.option("--skip-refused", is_flag=True, help="Go on although the target does not take all definitions.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@RATE
@PREFETCH
@PATIENCE
def migrate(**given: Any) -> None:
    """Move a broker's definitions and messages to another one; RabbitMQ or rabbitpy-broker, either way.

    A message leaves SOURCE when the other broker has confirmed it. Cut short, it is begun again with the same command. Consumers
    of the queues should not run meanwhile; publishers may, and what they publish goes with the rest.
    """
    _exit(_migrate(given))


async def _migrate(given: dict[str, Any]) -> int:
    console = Console(width=None if sys.stdout.isatty() else 160)
    source_url, target_url = given["source"], given["target"]
    source_api = Management(given["management"] or f"http://{source_url.host}:15672", source_url.user, source_url.password)
    target_api = Management(given["to_management"] or f"http://{target_url.host}:15672", target_url.user, target_url.password)

    def wanted(vhost: str, name: str) -> bool:
        queues, vhosts = given["queues"], given["vhosts"]
        return (not vhosts or vhost in vhosts) and (not queues or any(fnmatch.fnmatchcase(name, one) for one in queues))

    async with source_api, target_api:
        plan = await make_plan(source_api, target_api, wanted, with_definitions=given["definitions"])
        show_plan(console, plan, messages=given["messages"])
        if given["dry_run"]:
            return 0
        if plan.refusals and not given["skip_refused"]:
            console.print("Nothing was done. With --skip-refused the rest is moved.")
            return os.EX_DATAERR
        with progress_bar(console) as bar:
            task = bar.add_task("messages", total=sum(queue.messages for queue in plan.to_move()))
            done: dict[QueueToMove, int] = {}

            def told(queue: QueueToMove, tally: Tally) -> None:
                done[queue] = tally.moved
                bar.update(task, completed=sum(done.values()))

            migration = Migration(
                (source_url, source_api),
                (target_url, target_api),
                rate=given["rate"],
                parallel=given["parallel"],
                prefetch=given["prefetch"],
                patience_s=given["patience"],
                state=given["state"],
                on_move=told,
            )
            await migration.apply(plan)
            moved = await migration.move(plan) if given["messages"] else []
    show_result(console, moved, migration)
    return 0 if all(one.error == "" and one.verified is not False for one in moved) else os.EX_DATAERR


def progress_bar(console: Console) -> Progress:
    """Messages, how many a second, and how long it will take."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def show_plan(console: Console, plan: Plan, *, messages: bool) -> None:
    """What is not taken, and why; then the queues."""
    if plan.definitions:
        counts = ", ".join(f"{len(entries)} {section}" for section, entries in plan.definitions.items() if entries)
        console.print(f"Definitions: {counts or 'none'}")
    if plan.refusals:
        table = Table("not taken", "vhost", "name", "reason", box=None, pad_edge=False)
        for refusal in plan.refusals:
            table.add_row(*map(Text, refusal))
        console.print(table)
    if not messages:
        return
    table = Table("vhost", "queue", "type", "messages", "unacked", "consumers", "", box=None, pad_edge=False)
    for queue in plan.queues:
        figures = (str(queue.messages), str(queue.unacked), str(queue.consumers))
        table.add_row(*map(Text, (queue.vhost, queue.name, queue.kind, *figures, queue.skipped)))
    console.print(table)


def show_result(console: Console, moved: list[Moved], migration: Migration) -> None:
    """A line for each queue, and a sum."""
    table = Table("vhost", "queue", "moved", "perhaps twice", "verified", "", box=None, pad_edge=False)
    for one in moved:
        verified = {True: "yes", False: "NO", None: "-"}[one.verified]
        figures = (str(one.tally.moved), str(one.tally.doubtful), verified, one.error or one.note)
        table.add_row(*map(Text, (one.queue.vhost, one.queue.name, *figures)))
    console.print(table)
    state = migration.state
    console.print(f"{state.total('moved')} messages moved, {state.total('doubtful')} of them perhaps twice")


@click.command("shovel")
@click.argument("source", type=AmqpUrl())
@click.argument("queue")
@click.argument("target", type=AmqpUrl())
@click.option("--to-queue", default="", metavar="QUEUE", help="Where messages go. [default: the queue of the same name]")
@click.option("--to-exchange", default="", metavar="EXCHANGE", help="Or to an exchange, each with its routing key.")
@click.option("--until-empty", is_flag=True, help="End when the queue is empty.")
@RATE
@PREFETCH
@PATIENCE
def shovel(**given: Any) -> None:
    """Move the messages of QUEUE at SOURCE to TARGET, one after the other, until it is told to stop.

    A message is acked when the target has confirmed it. Lost connections are made again.
    """
    _exit(_shovel(given))


async def _shovel(given: dict[str, Any]) -> int:
    to_queue = given["to_queue"] or ("" if given["to_exchange"] else given["queue"])
    target = Target(given["target"], to_queue, given["to_exchange"])
    work = Shovel(
        given["source"],
        given["queue"],
        target,
        forever=not given["until_empty"],
        prefetch=given["prefetch"],
        rate=given["rate"],
        patience_s=given["patience"],
    )
    running = asyncio.ensure_future(work.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        if not running.cancelled():
            raise
    click.echo(f"{work.tally.moved} messages moved, {work.tally.doubtful} of them perhaps twice")
    return 0


def _exit(work: Coroutine[Any, Any, int]) -> None:
    try:
        code = asyncio.run(work)
    except (BrokerError, OSError, ValueError) as error:
        click.echo(f"Error: {error}", err=True)
        code = os.EX_UNAVAILABLE
    click.get_current_context().exit(code)
