"""The table of routes: each path below /api, its methods, who may use them, and what answers.

`:name` is a variable, and a literal segment goes before a variable in its place. The paths are RabbitMQ 3.10.8's, with a few
of 4's that clients try. What must stay true: a route without a check of its own for a method has the path's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rabbitpy_broker.management.api import (
    attention,
    audit,
    backups,
    bindings,
    browse,
    cluster,
    connections,
    consumers,
    definitions,
    differences,
    events,
    exchanges,
    features,
    health,
    history,
    internals,
    login,
    messages,
    moves,
    nodes,
    permissions,
    policies,
    preview,
    queues,
    search,
    simulation,
    stream,
    tables,
    tail,
    topology,
    users,
    vhosts,
)
from rabbitpy_broker.management.api.auth import (
    Check,
    administrator,
    inside_vhost,
    management,
    monitor,
    nobody,
    of_vhost,
    of_vhost_or_monitor,
    policymaker,
)
from rabbitpy_broker.management.api.errors import not_found
from rabbitpy_broker.management.api.request import Request
from rabbitpy_broker.management.api.state import Api

# Answers with a JSON value, an Answer or a Listing, or with a coroutine for one of them.
Handler = Callable[[Api, Request], Any]


class Endpoint(NamedTuple):
    """`changes` says whether anything is different afterwards, when the method is not GET; with `may_run_dry` that nothing is
    when the query says `dry_run=true`.
    """

    check: Check
    handler: Handler
    changes: bool = True
    may_run_dry: bool = False


class Route(NamedTuple):
    """One path; `summary` is for the reference."""

    path: str
    summary: str
    methods: dict[str, Endpoint]

    @property
    def segments(self) -> list[str]:
        return self.path.split("/")


_Given = Handler | tuple[Check, Handler] | tuple[Check, Handler, bool] | tuple[Check, Handler, bool, bool]


def _route(path: str, check: Check, summary: str, **handlers: _Given) -> Route:
    endpoints = {
        method: Endpoint(*given) if isinstance(given, tuple) else Endpoint(check, given) for method, given in handlers.items()
    }
    return Route(path, summary, endpoints)


ROUTES: Final = (
    # the broker
    _route("overview", management, "What the broker is and has, and its totals.", GET=nodes.overview),
    _route(
        "cluster-name", management, "The name that the broker goes by.", GET=nodes.get_cluster_name,
        PUT=(administrator, nodes.put_cluster_name),
    ),
    _route("cluster", monitor, "Nodes, engine and replicated vhosts of the cluster.", GET=cluster.show),
    _route("nodes", monitor, "The nodes of the cluster; a broker that is in none is one node.", GET=nodes.list_all),
    _route("nodes/:node", monitor, "One node.", GET=nodes.get_one),
    _route("nodes/:node/memory", monitor, "Where memory goes, in bytes.", GET=nodes.get_memory),
    _route("nodes/:node/memory/relative", monitor, "Where memory goes, in percent.", GET=nodes.get_memory_shares),
    _route("nodes/:node/memory/ets", monitor, "Erlang's tables: none.", GET=nodes.get_memory_tables),
    _route("nodes/:node/memory/ets/relative", monitor, "Erlang's tables: none.", GET=nodes.get_memory_tables),
    _route("nodes/:node/memory/ets/:filter", monitor, "Erlang's tables: none.", GET=nodes.get_memory_tables),
    _route("nodes/:node/memory/ets/:filter/relative", monitor, "Erlang's tables: none.", GET=nodes.get_memory_tables),
    _route(
        "nodes/:node/maintenance", monitor, "Whether a node is in maintenance; to put it there, and to end that.",
        GET=cluster.show_maintenance, PUT=(administrator, cluster.drain), DELETE=(administrator, cluster.revive),
    ),
    _route("extensions", management, "Extensions of the user interface.", GET=features.extensions),
    _route("version", management, "The version of RabbitMQ that the broker stands for.", GET=features.version),
    _route("reset", administrator, "Forgets all statistics.", DELETE=nodes.reset),
    _route("reset/:node", administrator, "Forgets all statistics.", DELETE=nodes.reset),
    _route("rebalance/queues", administrator, "Nothing: there is one node.", POST=features.done),
    _route("feature-flags", management, "RabbitMQ's feature flags, all enabled.", GET=features.flags),
    _route("feature-flags/:name/enable", administrator, "Nothing: all are enabled.", PUT=features.enable_flag),
    _route("deprecated-features", management, "None.", GET=features.nothing),
    _route("deprecated-features/used", management, "None.", GET=features.nothing),
    # definitions
    _route(
        "definitions", administrator, "Everything but messages, as a file.", GET=definitions.get_all,
        POST=(administrator, differences.post_all, True, True),
    ),
    _route(
        "all-configuration", administrator, "As definitions.", GET=definitions.get_all,
        POST=(administrator, differences.post_all, True, True),
    ),
    _route(
        "definitions/:vhost", administrator, "What a vhost has, but messages, as a file.", GET=definitions.get_of_vhost,
        POST=(administrator, differences.post_of_vhost, True, True),
    ),
    _route(
        "definitions/diff", administrator, "What a file would add and change; in a vhost of this name: definitions/diff/diff.",
        POST=(administrator, differences.of_all, False),
    ),
    _route(
        "definitions/diff/:vhost", administrator, "The same for a vhost.", POST=(administrator, differences.of_vhost, False)
    ),
    # parameters, policies, limits
    _route("parameters", policymaker, "Parameters.", GET=policies.list_parameters),
    _route("parameters/:component", policymaker, "Those of a component.", GET=policies.list_parameters),
    _route("parameters/:component/:vhost", policymaker, "Those of a component in a vhost.", GET=policies.list_parameters),
    _route(
        "parameters/:component/:vhost/:name", policymaker, "One parameter.", GET=policies.get_parameter,
        PUT=policies.put_parameter, DELETE=policies.remove_parameter,
    ),
    _route("global-parameters", policymaker, "Global parameters.", GET=policies.list_globals),
    _route(
        "global-parameters/:name", policymaker, "One global parameter.", GET=policies.get_global, PUT=policies.put_global,
        DELETE=policies.remove_global,
    ),
    _route("policies", management, "Policies.", GET=policies.list_all),
    _route("policies/:vhost", of_vhost, "Those of a vhost.", GET=policies.list_of_vhost),
    _route(
        "policies/:vhost/:name", policymaker, "One policy.", GET=policies.get_one, PUT=policies.put, DELETE=policies.remove
    ),
    _route("operator-policies", management, "Operator policies.", GET=policies.list_operator),
    _route("operator-policies/:vhost", of_vhost, "Those of a vhost.", GET=policies.list_operator_of_vhost),
    _route(
        "operator-policies/:vhost/:name", administrator, "One operator policy.", GET=policies.get_operator,
        PUT=policies.put_operator, DELETE=policies.remove_operator,
    ),
    _route("vhost-limits", management, "Limits of vhosts.", GET=policies.list_vhost_limits),
    _route("vhost-limits/:vhost", of_vhost_or_monitor, "Limits of one vhost.", GET=policies.list_vhost_limits),
    _route(
        "vhost-limits/:vhost/:name", administrator, "One limit of a vhost.", PUT=policies.put_vhost_limit,
        DELETE=policies.remove_vhost_limit,
    ),
    _route("user-limits", management, "Limits of users.", GET=policies.list_user_limits),
    _route("user-limits/:user", management, "Limits of one user.", GET=policies.list_user_limits),
    _route(
        "user-limits/:user/:name", administrator, "One limit of a user.", PUT=policies.put_user_limit,
        DELETE=policies.remove_user_limit,
    ),
    # connections, channels, consumers
    _route("connections", management, "Connections: one's own, or all for who monitors.", GET=connections.list_all),
    _route(
        "connections/:connection", management, "One connection; to delete it is to close it.", GET=connections.get_one,
        DELETE=connections.remove,
    ),
    _route(
        "connections/username/:user", management, "Connections of a user.", GET=connections.list_of_user,
        DELETE=connections.remove_of_user,
    ),
    _route(
        "connections/:connection/channels", management, "Channels of a connection.",
        GET=connections.list_channels_of_connection,
    ),
    _route("connections/:connection/sessions", management, "Sessions of AMQP 1.0: none.", GET=connections.list_sessions),
    _route("channels", management, "Channels.", GET=connections.list_channels),
    _route("channels/:channel", management, "One channel.", GET=connections.get_channel),
    _route("consumers", management, "Consumers.", GET=consumers.list_all),
    _route("consumers/:vhost", management, "Consumers in a vhost.", GET=consumers.list_of_vhost),
    _route(
        "consumers/:vhost/:connection/:channel/:consumer_tag", of_vhost, "A consumer; to delete it is to cancel it.",
        DELETE=consumers.remove,
    ),
    # exchanges, queues, bindings
    _route("exchanges", management, "Exchanges.", GET=exchanges.list_all),
    _route("exchanges/:vhost", of_vhost, "Exchanges of a vhost.", GET=exchanges.list_of_vhost),
    _route(
        "exchanges/:vhost/:exchange", of_vhost, "One exchange.", GET=exchanges.get_one, PUT=exchanges.put,
        DELETE=exchanges.remove,
    ),
    _route("exchanges/:vhost/:exchange/publish", inside_vhost, "Publishes a message.", POST=messages.publish),
    _route(
        "exchanges/:vhost/:exchange/tail", inside_vhost, "What an exchange routes, as server-sent events.", GET=tail.of_exchange
    ),
    _route(
        "exchanges/:vhost/:exchange/delayed", inside_vhost, "What waits behind a delayed message exchange.",
        GET=browse.delayed,
    ),
    _route(
        "exchanges/:vhost/:exchange/bindings/source", of_vhost, "Bindings from an exchange.", GET=bindings.list_of_source
    ),
    _route(
        "exchanges/:vhost/:exchange/bindings/destination", of_vhost, "Bindings to an exchange.",
        GET=bindings.list_of_destination,
    ),
    _route("queues", management, "Queues.", GET=queues.list_all),
    _route("queues/detailed", management, "As queues.", GET=queues.list_all),
    _route("queues/:vhost", of_vhost, "Queues of a vhost.", GET=queues.list_of_vhost),
    _route("queues/:vhost/:queue", of_vhost, "One queue.", GET=queues.get_one, PUT=queues.put, DELETE=queues.remove),
    _route("queues/:vhost/:queue/bindings", of_vhost, "Bindings to a queue.", GET=bindings.list_of_queue),
    _route("queues/:vhost/:queue/contents", of_vhost, "Drops what is ready.", DELETE=queues.remove_contents),
    _route("queues/:vhost/:queue/get", inside_vhost, "Takes messages from a queue.", POST=messages.get),
    _route(
        "queues/:vhost/:queue/messages", inside_vhost, "Messages where they are, ready and unacked; nothing changes.",
        GET=browse.messages,
    ),
    _route(
        "queues/:vhost/:queue/messages/search", inside_vhost, "Searches in a queue: a line of JSON for each match.",
        POST=(inside_vhost, search.search, False),
    ),
    _route(
        "queues/:vhost/:queue/messages/tail", inside_vhost, "Messages as they come, as server-sent events.", GET=tail.of_queue
    ),
    _route("queues/:vhost/:queue/messages/delete", inside_vhost, "Deletes chosen messages.", POST=moves.delete),
    _route("queues/:vhost/:queue/messages/move", inside_vhost, "Moves chosen messages.", POST=moves.move),
    _route("queues/:vhost/:queue/messages/copy", inside_vhost, "Copies chosen messages.", POST=moves.copy),
    _route(
        "queues/:vhost/:queue/messages/retry", inside_vhost, "Dead letters back to where they came from.", POST=moves.retry
    ),
    _route(
        "queues/:vhost/:queue/messages/:position", inside_vhost, "One message where it is.", GET=browse.message,
        DELETE=moves.delete_one,
    ),
    _route(
        "queues/:vhost/:queue/messages/:position/replace", inside_vhost, "Publishes an edited message in its place.",
        POST=moves.replace,
    ),
    _route("route", management, "Where a message would go, and why.", POST=(management, simulation.simulate, False)),
    _route(
        "messages/:vhost/copies", inside_vhost, "Copies of a message over queues, by message_id or correlation_id.",
        POST=(inside_vhost, search.copies, False),
    ),
    _route("queues/:vhost/:queue/actions", administrator, "Nothing: there are no mirrors.", POST=queues.do_action),
    _route("bindings", management, "Bindings.", GET=bindings.list_all),
    _route("bindings/:vhost", of_vhost, "Bindings of a vhost.", GET=bindings.list_of_vhost),
    _route(
        "bindings/:vhost/e/:source/:kind/:destination", of_vhost, "Bindings between two ends; kind is q or e.",
        GET=bindings.list_between, POST=bindings.post,
    ),
    _route(
        "bindings/:vhost/e/:source/:kind/:destination/:props", of_vhost, "One binding, by its properties_key.",
        GET=bindings.get_one, DELETE=bindings.remove,
    ),
    _route("queues/quorum/:vhost/:queue/status", of_vhost, "The members of a quorum queue.", GET=cluster.show_quorum),
    # vhosts, users, permissions
    _route("vhosts", management, "Vhosts.", GET=vhosts.list_all),
    _route(
        "vhosts/:vhost", administrator, "One vhost.", GET=vhosts.get_one, PUT=vhosts.put,
        DELETE=vhosts.remove,
    ),
    _route(
        "vhosts/:vhost/deletion/protection", administrator, "Has a vhost not be deleted here.", POST=vhosts.protect,
        DELETE=vhosts.unprotect,
    ),
    _route(
        "vhosts/:vhost/worker", administrator, "Moves a vhost to another worker, where there are several.",
        PUT=(administrator, vhosts.move, True, True),
    ),
    _route(
        "vhosts/:vhost/owner", administrator, "Has another node of the cluster own a replicated vhost.",
        PUT=(administrator, vhosts.transfer),
    ),
    _route(
        "vhosts/:vhost/replicas/add", administrator, "Gives a replica of a replicated vhost to a node.",
        POST=cluster.add_replica,
    ),
    _route(
        "vhosts/:vhost/replicas/delete", administrator, "Takes the replica of a replicated vhost from a node.",
        DELETE=cluster.delete_replica,
    ),
    _route("vhosts/:vhost/backup", administrator, "Begins a backup of a vhost.", POST=backups.back_up),
    _route("vhosts/:vhost/restore", administrator, "Begins to make a vhost of a backup.", POST=backups.restore),
    _route("backups", administrator, "Backups of this node, and how far those are that run.", GET=backups.show),
    _route("vhosts/:vhost/start/:node", administrator, "Nothing: each vhost runs.", POST=vhosts.start),
    _route("vhosts/:vhost/permissions", administrator, "Permissions in a vhost.", GET=permissions.list_of_vhost),
    _route(
        "vhosts/:vhost/topic-permissions", administrator, "Topic permissions in a vhost.", GET=permissions.list_topic_of_vhost
    ),
    _route("vhosts/:vhost/connections", of_vhost, "Connections to a vhost.", GET=connections.list_of_vhost),
    _route("vhosts/:vhost/channels", of_vhost, "Channels in a vhost.", GET=connections.list_channels_of_vhost),
    _route("users", administrator, "Users.", GET=users.list_all),
    _route("users/without-permissions", administrator, "Users that may enter no vhost.", GET=users.list_without_permissions),
    _route("users/bulk-delete", administrator, "Deletes several users.", POST=users.remove_several),
    _route("users/:user", administrator, "One user.", GET=users.get_one, PUT=users.put, DELETE=users.remove),
    _route("users/:user/permissions", administrator, "Permissions of a user.", GET=permissions.list_of_user),
    _route(
        "users/:user/topic-permissions", administrator, "Topic permissions of a user.", GET=permissions.list_topic_of_user
    ),
    _route("whoami", management, "Who asks.", GET=users.whoami),
    _route("permissions", administrator, "Permissions.", GET=permissions.list_all),
    _route(
        "permissions/:vhost/:user", administrator, "Permissions of a user in a vhost.", GET=permissions.get_one,
        PUT=permissions.put, DELETE=permissions.remove,
    ),
    _route("topic-permissions", administrator, "Topic permissions.", GET=permissions.list_topic),
    _route(
        "topic-permissions/:vhost/:user", administrator, "Topic permissions of a user in a vhost.", GET=permissions.get_topic,
        PUT=permissions.put_topic, DELETE=permissions.remove_topic,
    ),
    _route(
        "topic-permissions/:vhost/:user/:exchange", administrator, "Topic permissions for one exchange.",
        GET=permissions.get_topic, PUT=permissions.put_topic, DELETE=permissions.remove_topic,
    ),
    # health
    _route("aliveness-test/:vhost", of_vhost, "Publishes and takes a message in a vhost.", GET=messages.aliveness),
    _route("healthchecks/node", management, "The old health check.", GET=health.node),
    _route("healthchecks/node/:node", management, "The old health check.", GET=health.node),
    _route("health/checks/alarms", management, "No alarm is on, at any node.", GET=health.alarms),
    _route("health/checks/local-alarms", management, "No alarm is on, at this node.", GET=health.local_alarms),
    _route(
        "health/checks/certificate-expiration/:within/:unit", management, "No certificate ends in this time.",
        GET=health.certificate_expiration,
    ),
    _route("health/checks/port-listener/:port", management, "Somebody listens on a port.", GET=health.port_listener),
    _route(
        "health/checks/protocol-listener/:protocol", management, "A protocol can be spoken.", GET=health.protocol_listener
    ),
    _route("health/checks/virtual-hosts", management, "Each vhost can write.", GET=health.virtual_hosts),
    _route("health/checks/node-is-mirror-sync-critical", management, "Always well.", GET=health.no_mirrors),
    _route(
        "health/checks/node-is-quorum-critical", management, "Replicated vhosts keep their quorum without this node.",
        GET=health.quorum_critical,
    ),
    _route("health/checks/replica-lag", management, "Each replica runs, and is not far behind.", GET=health.replica_lag),
    _route("health/checks/replica-lag/:seconds", management, "Or not further than this.", GET=health.replica_lag),
    _route("health/checks/vhost-owners", management, "Each replicated vhost has an owner.", GET=health.vhost_owners),
    _route("health/checks/is-in-service", management, "Always well.", GET=health.in_service),
    _route("health/checks/ready-to-serve-clients", management, "Always well.", GET=health.in_service),
    _route("health/checks/reached-target-cluster-size", management, "Always well.", GET=health.in_service),
    _route("health/checks/metadata-store/initialized", management, "Always well.", GET=health.in_service),
    _route("health/checks/metadata-store/initialized/with-data", management, "Always well.", GET=health.in_service),
    _route(
        "health/checks/below-node-connection-limit", management, "One more may connect.", GET=health.connection_limit
    ),
    # log-ins, and what was done
    _route("log", administrator, "The last lines of the log.", GET=events.lines),
    # for pages in a browser
    _route("attention", management, "What is unusual now, and what would end it.", GET=attention.show),
    _route("topology", management, "Exchanges and queues as a graph.", GET=topology.of_all),
    _route("topology/:vhost", of_vhost, "Those of a vhost.", GET=topology.of_vhost),
    _route(
        "policies/preview", policymaker, "What a policy would change.", POST=(policymaker, preview.of_policy, False)
    ),
    _route(
        "permissions/test", administrator, "What a user may do with a queue or an exchange.",
        POST=(administrator, preview.of_permissions, False),
    ),
    _route("table/:kind", management, "A list by columns, with what is asked for most.", GET=tables.show),
    _route("events", management, "What changes, each second, as server-sent events.", GET=events.subscribe),
    _route("history/node", monitor, "The last day of the node.", GET=history.of_node),
    _route("history/vhost/:vhost", of_vhost_or_monitor, "The last day of a vhost.", GET=history.of_vhost),
    _route("history/queue/:vhost/:queue", of_vhost, "The last ten minutes of a queue.", GET=history.of_queue),
    _route("queues/:vhost/:queue/stream", of_vhost, "A stream's ends, segments, readers and offsets.", GET=stream.of_queue),
    _route("queues/:vhost/:queue/internals", of_vhost, "Where a queue's messages are.", GET=internals.of_queue),
    _route("nodes/:node/internals", monitor, "What the stores have done.", GET=internals.of_node),
    _route("audit", administrator, "The latest changes: who, from where, what.", GET=audit.show),
    _route("auth", nobody, "Whether there is OAuth: no.", GET=features.auth),
    _route("login", nobody, "Whether a name and a password would do.", POST=(nobody, login.check, False)),
    _route(
        "session", nobody, "The session of a browser.", GET=login.show, POST=(nobody, login.begin, False),
        DELETE=(nobody, login.end, False),
    ),
    _route("auth/attempts/:node", monitor, "Log-ins, counted.", GET=features.attempts, DELETE=features.forget_attempts),
    _route(
        "auth/attempts/:node/:by", monitor, "Log-ins by where they came from: not counted.", GET=features.attempts,
        DELETE=features.forget_attempts,
    ),
    _route("auth/hash_password/:password", administrator, "A password's hash.", GET=features.hashed),
)  # fmt: skip


class _Branch:
    """What may follow the segments so far."""

    def __init__(self) -> None:
        self.literal: dict[str, _Branch] = {}
        self.variable: _Branch | None = None
        self.route: Route | None = None


class Router:
    """Finds the route of a path."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._root = _Branch()
        for route in routes:
            branch = self._root
            for segment in route.segments:
                branch = _next(branch, segment)
            assert branch.route is None, f"{route.path} is in the table twice"
            branch.route = route

    def find(self, path: list[str], method: str = "GET") -> tuple[Route, dict[str, str]]:
        """The route of these decoded segments, one with the method if there is one, and what its variables stand for. Raises
        ApiError 404.
        """
        others: list[tuple[Route, dict[str, str]]] = []
        for route in _matches(self._root, path):
            names = {
                segment[1:]: given for segment, given in zip(route.segments, path, strict=True) if segment.startswith(":")
            }
            if all(names.values()):
                if method in route.methods:
                    return route, names
                others.append((route, names))
        if not others:
            raise not_found()
        return others[0]


def _next(branch: _Branch, segment: str) -> _Branch:
    if not segment.startswith(":"):
        return branch.literal.setdefault(segment, _Branch())
    if branch.variable is None:
        branch.variable = _Branch()
    return branch.variable


def _matches(branch: _Branch, path: list[str]) -> Iterator[Route]:
    if not path:
        if branch.route is not None:
            yield branch.route
        return
    literal = branch.literal.get(path[0])
    if literal is not None:
        yield from _matches(literal, path[1:])
    if branch.variable is not None:
        yield from _matches(branch.variable, path[1:])
