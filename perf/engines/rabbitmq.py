"""A cluster of three nodes of the installed RabbitMQ on this machine, for comparisons.

    python -m perf.engines.rabbitmq FOLDER        starts them, prints their URLs, stops them at Ctrl-C

They have node names, an epmd, a cookie, ports and directories of their own, and RabbitMQ's defaults but for the plug-ins, of
which there are none. A queue with `x-queue-type=quorum` has a member on each.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from perf import brokers
from perf.brokers import Broker, StartFailed

NODES = ("one", "two", "three")
PATIENCE = 120.0


@contextlib.contextmanager
def running(folder: Path) -> Iterator[list[Broker]]:
    """The three nodes, in one cluster. Raises StartFailed."""
    epmd = shutil.which("epmd") or next((str(path) for path in Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None)
    if not brokers.RABBITMQ_SERVER.exists() or epmd is None:
        raise StartFailed(f"RabbitMQ is not installed here: no {brokers.RABBITMQ_SERVER if epmd else 'epmd'}")
    epmd_port, *ports = brokers.free_ports(1 + 2 * len(NODES))
    names = [f"{name}{os.getpid()}@localhost" for name in NODES]
    formation = "cluster_formation.peer_discovery_backend = classic_config\n" + "".join(
        f"cluster_formation.classic_config.nodes.{number} = {name}\n" for number, name in enumerate(names, 1)
    )
    environments = []
    for number, (short, name) in enumerate(zip(NODES, names, strict=True)):
        own = folder / short
        own.mkdir()
        (own / "rabbitmq.conf").write_text(f"log.console = true\nlog.console.level = warning\n{formation}")
        (own / "plugins").write_text("[].\n")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        environments.append(
            kept
            | {
                "HOME": str(folder),  # with the cookie that all share
                "RUNNING_UNDER_SYSTEMD": "1",
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "ERL_EPMD_PORT": str(epmd_port),
                "RABBITMQ_NODENAME": name,
                "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODE_PORT": str(ports[2 * number]),
                "RABBITMQ_DIST_PORT": str(ports[2 * number + 1]),
                "RABBITMQ_MNESIA_BASE": str(own / "data"),
                "RABBITMQ_LOG_BASE": str(own / "log"),
                "RABBITMQ_CONFIG_FILE": str(own / "rabbitmq"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(own / "plugins"),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            }
        )
    cookie = folder / ".erlang.cookie"
    cookie.write_text(f"PERF{os.getpid()}")
    cookie.chmod(0o400)
    (folder / "epmd").mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(brokers.session([epmd, "-port", str(epmd_port)], folder / "epmd", environments[0]))
        started = []
        for number, (short, environment) in enumerate(zip(NODES, environments, strict=True)):
            process = stack.enter_context(brokers.session([str(brokers.RABBITMQ_SERVER)], folder / short, environment))
            broker = Broker(short, f"amqp://guest:guest@127.0.0.1:{ports[2 * number]}", process.pid)
            brokers.wait_until_ready(broker, process, folder / short)  # one after the other, so that they find each other
            started.append(broker)
        wait_for_members(environments[0], folder / NODES[0])
        yield started


def wait_for_members(environment: dict[str, str], folder: Path) -> None:
    """Returns when all nodes run in one cluster."""
    ctl = brokers.RABBITMQ_SERVER.with_name("rabbitmqctl")
    end = time.monotonic() + PATIENCE
    said = folder / "ctl"
    said.mkdir()
    while True:
        with brokers.session(
            [str(ctl), "-q", "eval", f"length(rabbit_nodes:all_running()) =:= {len(NODES)}."], said, environment
        ) as process:
            process.wait(PATIENCE)
        if "true" in (said / "output").read_text():
            return
        if time.monotonic() > end:
            raise StartFailed(f"the nodes of RabbitMQ do not form a cluster: {(said / 'output').read_text()}")
        time.sleep(1)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Starts three nodes in FOLDER, which is made, and stops them at the end."""
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with running(folder.resolve()) as nodes, contextlib.suppress(KeyboardInterrupt):
        for node in nodes:
            click.echo(node.url)
        signal.pause()


if __name__ == "__main__":
    main()
