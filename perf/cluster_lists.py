"""What does a list of a whole cluster cost, of which each node has many queues?

    python -m perf.cluster_lists --queues 20000

Three nodes on PostgreSQL, each with as many queues in a vhost of its own. One of them is asked for all queues, for a page of a
hundred, and for all of them in another order, again and again, by somebody who takes gzip. Reported are how long that takes, the
CPU time of the node that is asked and of the others together, and the longest round trip of a client of the node that is asked
meanwhile, which is as long as the longest pause of its loop. Everything shares the cores of this machine.
"""

from __future__ import annotations

import gzip
import json
import shlex
import time
import urllib.request
from typing import Any, Final

import click

from perf import brokers, cluster_log, machine, replicas
from perf.brokers import StartFailed
from perf.kill.ledger import Violation
from perf.load.client import Refused
from perf.management import LOGIN, make_queues
from perf.many_durable import probing
from perf.replicas import NODES, Replicas
from rabbitpy_broker.ctl import CtlError

TIMEOUT_S: Final = 60.0
LACKS: Final = "X-Rabbitpy-Nodes-Missing"
LISTS: Final = {"list": "queues", "page": "queues?page=1&page_size=100", "sorted": "queues?sort=messages"}


def get(api: str, path: str) -> tuple[int, Any]:
    """The bytes that came, and what they say. Raises Violation if a node is left out."""
    request = urllib.request.Request(f"{api}/{path}", headers={**LOGIN, "Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        given: bytes = answer.read()
        if answer.headers[LACKS]:
            raise Violation(f"{path} lacks what {answer.headers[LACKS]} has")
        return len(given), json.loads(gzip.decompress(given) if answer.headers["Content-Encoding"] == "gzip" else given)


def measure(nodes: Replicas, queues: int, lists: int, pause_s: float) -> dict[str, Any]:
    apis = {node: f"http://{daemon.events('broker started')[0]['management'][0]}/api" for node, daemon in nodes.daemons.items()}
    for api in apis.values():
        make_queues(api, queues)
    asked = NODES[0]
    found: dict[str, Any] = {}
    with probing(nodes.daemons[asked].address) as probe:
        for kind, path in LISTS.items():
            before = {node: nodes.broker(node).cpu_s() for node in NODES}
            took_s: list[float] = []
            waited: list[float] = []
            size = 0
            for _ in range(lists):
                began = time.monotonic()
                answers: list[tuple[int, Any]] = []
                waited.append(probe.during(lambda: answers.append(get(apis[asked], path)))["longest_ms"])  # noqa: B023
                took_s.append(time.monotonic() - began)
                size, said = answers[0]
                rows = said["total_count"] if isinstance(said, dict) else len(said)
                if rows < queues * len(NODES):
                    raise Violation(f"{path} has {rows} queues of {queues * len(NODES)}")
                time.sleep(pause_s)
            spent = {node: (nodes.broker(node).cpu_s() - before[node]) / lists for node in NODES}
            found[kind] = {
                "s": [round(one, 2) for one in took_s],
                "mb": round(size / 1e6, 2),
                "asked_cpu_s": round(spent.pop(asked), 2),
                "others_cpu_s": round(sum(spent.values()), 2),
                "longest_ms": waited,
            }
            click.echo(f"{kind}: {json.dumps(found[kind])}", err=True)
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
@click.option("--engine", default="postgres", help="`postgres`, `kafka`, or the URL of one that runs.")
@click.option("--queues", type=click.IntRange(1), default=20_000, help="Of each node.")
@click.option("--lists", type=click.IntRange(1), default=3, help="Of each kind.")
@click.option("--pause", type=click.FloatRange(0), default=6.0, help="Seconds between two lists, so that each is made.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(command: str, engine: str, queues: int, lists: int, pause: float, save: bool) -> None:
    """Lists of all queues of a cluster."""
    result: dict[str, Any] = {"engine": engine if engine in ("kafka", "postgres") else "url", "queues": queues}
    started = [*shlex.split(command), "--management-listen", "127.0.0.1:0"]
    try:
        with cluster_log.servers(engine) as url, replicas.running(started, url) as nodes:
            result.update(measure(nodes, queues, lists, pause))
    except (CtlError, Refused, StartFailed, Violation) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('cluster-lists', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.cluster_lists")
