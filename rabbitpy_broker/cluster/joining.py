"""How a broker becomes a node of a cluster: engine, member, what it sees of the others, and clients that are passed on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from rabbitpy_broker import __version__, build_info
from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.conversion import Conversions
from rabbitpy_broker.cluster.draining import Transfers
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.forwarding import Forwarding
from rabbitpy_broker.cluster.lasting import lasting
from rabbitpy_broker.cluster.link import LinkServer, advertised, cluster_secret, link_listen
from rabbitpy_broker.cluster.link_life import LinkLife
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.member import Home, Member
from rabbitpy_broker.cluster.nodes import Listening, NodeInfo
from rabbitpy_broker.cluster.other_nodes import OtherNodes, counted
from rabbitpy_broker.cluster.registry import Registry
from rabbitpy_broker.cluster.shared_parameters import SharedParameters
from rabbitpy_broker.cluster.shared_users import SharedUsers
from rabbitpy_broker.cluster.view import LOOK_S, View
from rabbitpy_broker.definitions import CLUSTER_ID, CLUSTER_NAME
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.protocol.handshake import RABBITMQ_VERSION
from rabbitpy_broker.users import User


async def join_cluster(broker: ManagedBroker, home: Home, cleanup: AsyncExitStack) -> None:
    """Makes the broker a member, if there is an engine. Raises ConfigError, StartError."""
    config = broker.config.cluster
    if not config.engine:
        return
    if broker.sockets is not None:
        raise StartError("cluster.engine: a daemon with several workers has no replicated vhosts: set workers = 1")
    name = broker.config.node_name()
    engine = engine_for(config.engine)
    life = LinkLife(config.lease / 1000, broker.log)
    server = LinkServer(broker.clients, broker.node.users, life, broker.log)
    await server.start(link_listen(config.listen, broker.config.net.listeners), config.advertise)
    cleanup.callback(server.stop)
    server.http = broker.http_of_nodes
    broker.link_server = server

    def info() -> bytes:
        return told(broker, server.address).packed()

    lease_s, append_timeout_s = config.lease / 1000, config.append_timeout / 1000
    broker.member = Member(engine, home, name, info, lease_s, append_timeout_s, config.checkpoint_bytes, broker.log)
    await broker.member.start()
    cleanup.push_async_callback(broker.member.stop)
    broker.transfers = Transfers(broker.member)
    broker.conversions = Conversions(broker.member)
    users = broker.node.users
    shared_users = SharedUsers(engine.registry, users, broker.commit, lambda user: _close_deleted(broker, user), broker.log)
    shared_parameters = SharedParameters(
        engine.registry, broker.definitions, broker.commit, lambda name: _take_parameter(broker, name), broker.log
    )
    broker.shared = [shared_users, shared_parameters]
    view = broker.view = View(engine.registry, broker.log)
    view.changed.append(lambda: _tell_owners(broker, view))
    forwarding = Forwarding(name, view, life, broker.log) if config.redirect == "forward" else None
    broker.node.elsewhere = forwarding or OtherNodes(name, view)
    if forwarding is not None:
        cleanup.push_async_callback(forwarding.stop)
    started = broker.member.started
    works = {
        "view of the nodes": view.run, "transfers": broker.transfers.run, "conversions": broker.conversions.run,
        "users": shared_users.run, "parameters": shared_parameters.run, "links": life.run,
        "secret": lambda: _learn(engine.registry, server, forwarding, broker.log),
    }  # fmt: skip
    tasks = [asyncio.create_task(_when(started, lasting(work, broker.log, part=part))) for part, work in works.items()]
    cleanup.push_async_callback(_cancel, tasks)


def told(broker: ManagedBroker, link: str) -> NodeInfo:
    """What the broker tells others of itself; `link` is where it takes clients from them."""
    advertise = broker.config.cluster.advertise
    member = broker.member
    return NodeInfo(
        amqp=[advertised(one, advertise) for one in broker.addresses],
        link=link,
        version=__version__,
        rabbitmq_version=RABBITMQ_VERSION,
        python=build_info.python(),
        cores=os.cpu_count() or 1,
        alarms=sorted(broker.alarms.active),
        held=sorted(broker.alarms.held),
        listeners=[Listening(one.protocol, one.host, one.port) for one in sorted(broker.listeners())],
        maintenance=member is not None and member.is_drained,
        positions=member.positions() if member is not None else {},
        log_version=blocks.VERSION,
        conversions=member.conversions if member is not None else {},
        users=counted(broker.node.users.all()),
        figures=broker.figures(),
        slow_append_ms=round(1000 * member.numbers.whole.pace.slow_s()) if member is not None else 0,
        answers=broker.http_of_nodes is not None,
    )


def _tell_owners(broker: ManagedBroker, view: View) -> None:
    """So that those are told who ask for a vhost of which this node has no replica."""
    member, elsewhere = broker.member, broker.node.owned_elsewhere
    assert member is not None, "kept by: join_cluster"
    for vhost in view.vhosts:
        if vhost in member.replicas or vhost not in broker.node.vhosts:
            elsewhere[vhost] = view.owner_of(vhost) or ""
    for vhost in [name for name in elsewhere if name not in view.vhosts and not member.is_kept(name)]:
        del elsewhere[vhost]


def _take_parameter(broker: ManagedBroker, name: str) -> None:
    """What this node uses of a global parameter that another has changed."""
    value = dict(broker.definitions.global_parameters()).get(name)
    if name == CLUSTER_ID and value is not None:
        broker.cluster_id = str(json.loads(value))
    elif name == CLUSTER_NAME:
        broker.node.server_properties["cluster_name"] = broker.config.node.cluster() if value is None else str(json.loads(value))


def _close_deleted(broker: ManagedBroker, user: User) -> None:
    theirs = [each for each in broker.clients.connections if each.session.user is user]
    broker.close_connections(theirs, f"user '{user.name}' is deleted")


async def _when(started: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    try:
        await started.wait()
    except BaseException:
        work.close()
        raise
    await work


async def _learn(registry: Registry, server: LinkServer, forwarding: Forwarding | None, log: Any) -> None:
    """Gets the secret of the nodes, as soon as the engine gives it."""
    while True:
        try:
            server.secret = await cluster_secret(registry)
        except ClusterError as error:
            log.warning("the secret of the cluster is not known", error=str(error))
            await asyncio.sleep(LOOK_S)
            continue
        if forwarding is not None:
            forwarding.secret = server.secret
        return


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
