"""`rabbitpy-ctl`: rabbitmqctl's commands, arguments, columns, messages and exit codes, for the broker of a data directory.

What each command is called with, and what it says before it begins, stands in COMMANDS; what it does is the broker's
affair (`management/`), which is asked over the control socket. This file only asks, and shows what comes back.

Scripts start this program by the dozen: whatever takes long to load is imported where it is needed.

Exit codes, as rabbitmqctl's (sysexits.h): 0; 64 wrong usage; 65 bad data, or no such vhost; 67 no such user; 69 the
broker refuses, or none runs; 70 anything else.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import click

from rabbitpy_broker import ctl_cluster, ctl_diagnostics
from rabbitpy_broker.errors import BrokerError, ConfigError
from rabbitpy_broker.management.address import SocketAddress, find_socket, peer_uid
from rabbitpy_broker.thresholds import BadThreshold, disk_threshold, memory_threshold

NEGATIVE: Final = re.compile(r"-[0-9.]+(e[-+]?[0-9]+)?[a-zA-Z]*")
TABLE_COLUMNS: Final = frozenset({"arguments", "client_properties"})


class CtlError(BrokerError):
    """The command has failed; `code` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


# -- the commands -------------------------------------------------------------------------------------------------


class Command(NamedTuple):
    """`arguments`: words, `[word]` for one that may be left out, `[word...]` for any number. `options`: keys of OPTIONS."""

    help: str
    arguments: str = ""
    banner: str = ""
    options: tuple[str, ...] = ()
    headers: bool = True


OPTIONS: Final[dict[str, Callable[..., Any]]] = {
    "vhost": click.option("-p", "--vhost", metavar="VHOST", help="The vhost. [default: /]"),
    "local": click.option("--local", is_flag=True, default=None, help="Of a cluster only what this node has."),
    "cluster": click.option("--cluster", is_flag=True, default=None, help="Also vhosts that other nodes have."),
    "description": click.option("--description", metavar="TEXT", default="", help="What the vhost is for."),
    "tags": click.option("--tags", metavar="TAG,...", default="", help="Tags of the vhost."),
    "default_queue_type": click.option(
        "--default-queue-type", metavar="classic|quorum|stream", default="", help="Of queues that could be of any type."
    ),
    "replicas": click.option("--replicas", type=int, help="On so many nodes of the cluster; 0: on this one alone."),
    "priority": click.option("--priority", type=int, default=0, help="The highest that matches is applied."),
    "apply_to": click.option("--apply-to", default="all", metavar="queues|exchanges|all", help="What it is for."),
    "force": click.option("--force", is_flag=True, help="Also if no other node can have some of its replicated vhosts."),
    "if_empty": click.option("-e", "--if-empty", is_flag=True, help="Only if it has no ready messages."),
    "if_unused": click.option("-u", "--if-unused", is_flag=True, help="Only if it has no consumers."),
    "everywhere": click.option("--global", "everywhere", is_flag=True, help="All, not one."),
    "limit": click.option("--limit", type=int, default=0, help="Close at most so many."),
    "unit": click.option("--unit", default="gb", metavar="bytes|mb|gb", help="Unit of sizes. [default: gb]"),
    "close_connections": click.option("--close-connections", is_flag=True, help="Close the user's connections, too."),
    "partitions": click.option("--partitions", type=int, default=0, help="How many, routed by hash. [default: 3]"),
    "routing_keys": click.option(
        "--routing-keys", "--binding-keys", metavar="KEY,...", default="", help="One partition for each key."
    ),
    "max_length_bytes": click.option("--max-length-bytes", type=int, help="Of each partition."),
    "max_age": click.option("--max-age", metavar="7D", default="", help="Of messages: Y, M, D, h, m or s."),
    "stream_max_segment_size_bytes": click.option("--stream-max-segment-size-bytes", type=int, help="Of each partition."),
    "user": click.option("--user", metavar="USER", default="guest", help="Whose limits."),
}

VHOST: Final = ("vhost",)
OF_CLUSTER: Final = ("vhost", "local")
LEFT_OUT: Final = ("replicas", "local", "cluster")  # options that the broker is not told unless they are given
POLICY: Final = ("vhost", "priority", "apply_to")

COMMANDS: Final[dict[str, Command]] = {
    # the node
    "ping": Command("Ask whether the broker answers."),
    "status": Command("Show what the broker is and how it is.", banner="Status of the broker on {data_dir} ..."),
    "check_running": Command("Check that the broker runs."),
    "is_running": Command("Say that the broker runs."),
    "is_booting": Command("Say whether the broker is about to start."),
    "server_version": Command("Show the version of RabbitMQ that the broker is to clients."),
    "alarms": Command("Show which alarms are on."),
    "check_alarms": Command("Check that no alarm is on."),
    "check_local_alarms": Command("Check that no alarm is on."),
    "listeners": Command("Show where the broker listens, and for which protocols."),
    "check_port_connectivity": Command("Connect to each address where the broker listens."),
    "check_port_listener": Command("Check that the broker listens on a port.", "port"),
    "check_protocol_listener": Command("Check that the broker listens for a protocol.", "protocol"),
    "check_if_node_is_quorum_critical": Command("Check that each replicated vhost keeps its quorum without this node."),
    "check_replica_lag": Command("Check that each replica runs and is not far behind. [default: 30 s]", "[seconds]"),
    "check_vhost_owners": Command("Check that each replicated vhost has an owner that lives."),
    "check_virtual_hosts": Command("Check that the store of each vhost can write."),
    "memory_breakdown": Command("Show what memory is used for.", "", "", ("unit",)),
    "set_vm_memory_high_watermark": Command(
        "Set the memory alarm until the next start: a fraction, or `absolute` and a size.",
        "fraction [size]",
        "Setting memory threshold to {fraction} ...",
    ),
    "set_disk_free_limit": Command(
        "Set the disk alarm until the next start: a size, or `mem_relative` and how many times the memory.",
        "limit [factor]",
        "Setting disk free limit to {limit} bytes ...",
    ),
    "reload_tls": Command("Read the certificates again, for clients that connect from now on.", "", "Reading certificates ..."),
    # users
    "add_user": Command("Create a user, who has no permissions yet.", "username [password]", 'Adding user "{username}" ...'),
    "delete_user": Command("Delete a user and close its connections.", "username", 'Deleting user "{username}" ...'),
    "change_password": Command(
        "Change a user's password.",
        "username [password]",
        'Changing password for user "{username}" ...',
        ("close_connections",),
    ),
    "clear_password": Command(
        "Let no password be the user's.", "username", 'Clearing password for user "{username}" ...'
    ),
    "authenticate_user": Command(
        "Try a password; exit code 65 if it is wrong.", "username [password]", 'Authenticating user "{username}" ...'
    ),
    "set_user_tags": Command(
        "Give a user these tags and no others.",
        "username [tag...]",
        'Setting tags for user "{username}" to [{tag}] ...',
    ),
    "set_user_limits": Command(
        "Set limits of a user, a JSON object.",
        "username definition",
        'Setting user limits to "{definition}" for user "{username}" ...',
    ),
    "clear_user_limits": Command(
        "Clear a limit of a user, or `all`.", "username limit", 'Clearing "{limit}" limit for user "{username}" ...'
    ),
    "list_user_limits": Command(
        "List the limits of a user.", "", 'Listing limits for user "{user}" ...', ("user", "everywhere"), headers=False
    ),
    "list_users": Command("List users and their tags.", "", "Listing users ..."),
    # permissions
    "set_permissions": Command(
        "Set what a user may configure, write and read in a vhost: regular expressions.",
        "username configure write read",
        'Setting permissions for user "{username}" in vhost "{vhost}" ...',
        VHOST,
    ),
    "clear_permissions": Command(
        "Shut a user out of a vhost.",
        "username",
        'Clearing permissions for user "{username}" in vhost "{vhost}" ...',
        VHOST,
    ),
    "list_permissions": Command(
        "List who may do what in a vhost.", "", 'Listing permissions for vhost "{vhost}" ...', VHOST
    ),
    "list_user_permissions": Command(
        "List what a user may do.", "username", 'Listing permissions for user "{username}" ...'
    ),
    "set_topic_permissions": Command(
        "Set which routing keys of a topic exchange a user may write and read.",
        "username exchange write read",
        'Setting topic permissions on "{exchange}" for user "{username}" in vhost "{vhost}" ...',
        VHOST,
    ),
    "clear_topic_permissions": Command(
        "Clear a user's topic permissions, of one exchange or all.",
        "username [exchange]",
        'Clearing topic permissions for user "{username}" in vhost "{vhost}" ...',
        VHOST,
    ),
    "list_topic_permissions": Command(
        "List topic permissions in a vhost.", "", 'Listing topic permissions for vhost "{vhost}" ...', VHOST
    ),
    "list_user_topic_permissions": Command(
        "List a user's topic permissions.", "username", 'Listing topic permissions for user "{username}" ...'
    ),
    # vhosts
    "add_vhost": Command(
        "Create a vhost.", "vhost", 'Adding vhost "{vhost}" ...', ("description", "tags", "default_queue_type", "replicas"),
    ),
    "delete_vhost": Command(
        "Delete a vhost with all that is in it, and close its connections.", "vhost", 'Deleting vhost "{vhost}" ...'
    ),
    "add_member": Command(
        "Give a replica of a replicated vhost to another node, which loads a checkpoint and follows.",
        "vhost node",
        'Adding a replica of vhost "{vhost}" on node {node} ...',
    ),
    "delete_member": Command(
        "Take the replica of a replicated vhost from a node, which must not own it.",
        "vhost node",
        'Removing the replica of vhost "{vhost}" from node {node} ...',
    ),
    "backup_vhost": Command(
        "Write a file of what is in a vhost, while it is used; of a replicated one at any node that has a replica.",
        "vhost file",
        'Backing up vhost "{vhost}" to a file at "{file}" ...',
    ),
    "restore_vhost": Command(
        "Create a vhost with what a backup has.",
        "vhost file",
        'Restoring vhost "{vhost}" from a file at "{file}" ...',
        ("replicas",),
    ),
    "cluster_status": Command(
        "Show the nodes of the cluster, and the replicated vhosts with their owners.",
        "",
        "Cluster status of the broker on {data_dir} ...",
    ),
    "await_online_nodes": Command(
        "Wait until so many nodes of the cluster run.", "count", "Waiting for at least {count} nodes to join the cluster ..."
    ),
    "list_vhosts": Command("List vhosts.", "[column...]", "Listing vhosts ..."),
    "list_workers": Command(
        "List the workers of the broker: processes, vhosts, connections, memory in bytes.", "", "Listing workers ..."
    ),
    "move_vhost": Command(
        "Move a vhost to another worker; its clients are closed, and may connect again.",
        "vhost worker",
        'Moving vhost "{vhost}" to worker {worker} ...',
    ),
    "replicate_vhost": Command(
        "Make a vhost of this node one that so many nodes have; its clients are closed, and may connect again.",
        "vhost",
        'Making vhost "{vhost}" replicated ...',
        ("replicas",),
    ),
    "unreplicate_vhost": Command(
        "Make a replicated vhost that this node owns one of this node alone; its clients are closed, and may connect again.",
        "vhost",
        'Taking vhost "{vhost}" from the other nodes ...',
    ),
    "transfer_vhost": Command(
        "Have another node of the cluster own a replicated vhost: this one, or the one that is furthest along.",
        "vhost [node]",
        'Transferring vhost "{vhost}" ...',
    ),
    "drain": Command(
        "Put the node into maintenance: close its clients, take none, and give its replicated vhosts to other nodes.",
        "",
        "Will put the node into maintenance mode. The node will no longer serve any client traffic!",
        ("force",),
    ),
    "revive": Command(
        "End the maintenance of the node.", "", "Will undo the effects of drain. The node will serve client traffic again ..."
    ),
    "set_vhost_limits": Command(
        "Set the limits of a vhost, a JSON object.",
        "definition",
        'Setting vhost limits to "{definition}" for vhost "{vhost}" ...',
        VHOST,
    ),
    "clear_vhost_limits": Command("Clear the limits of a vhost.", "", 'Clearing vhost "{vhost}" limits ...', VHOST),
    "list_vhost_limits": Command(
        "List the limits of a vhost.", "", 'Listing limits for vhost "{vhost}" ...', ("vhost", "everywhere"), headers=False
    ),
    "trace_on": Command("Switch the firehose of a vhost on.", "", 'Starting tracing for vhost "{vhost}" ...', VHOST),
    "trace_off": Command("Switch the firehose of a vhost off.", "", 'Stopping tracing for vhost "{vhost}" ...', VHOST),
    # policies
    "set_policy": Command(
        "Set a policy: a name, a regular expression over names, a JSON object.",
        "name pattern definition",
        'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" for vhost "{vhost}" ...',
        POLICY,
    ),
    "clear_policy": Command(
        "Remove a policy.", "name", 'Clearing policy "{name}" on vhost "{vhost}" ...', VHOST
    ),
    "list_policies": Command("List the policies of a vhost.", "", 'Listing policies for vhost "{vhost}" ...', VHOST),
    "set_operator_policy": Command(
        "Set an operator policy, which users' policies and arguments cannot exceed.",
        "name pattern definition",
        'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
        'for vhost "{vhost}" ...',
        POLICY,
    ),
    "clear_operator_policy": Command(
        "Remove an operator policy.", "name", 'Clearing operator policy "{name}" on vhost "{vhost}" ...', VHOST
    ),
    "list_operator_policies": Command(
        "List the operator policies of a vhost.",
        "",
        'Listing operator policy overrides for vhost "{vhost}" ...',
        VHOST,
    ),
    # parameters
    "list_parameters": Command(
        "List the runtime parameters of a vhost.", "", 'Listing runtime parameters for vhost "{vhost}" ...', VHOST
    ),
    "set_global_parameter": Command(
        "Keep a global parameter, a JSON value.",
        "name value",
        'Setting global runtime parameter "{name}" to "{value}" ...',
    ),
    "clear_global_parameter": Command(
        "Remove a global parameter.", "name", 'Clearing global runtime parameter "{name}" ...'
    ),
    "list_global_parameters": Command("List global parameters.", "", "Listing global runtime parameters ..."),
    # what there is
    "list_queues": Command("List queues.", "[column...]", "Listing queues for vhost {vhost} ...", OF_CLUSTER),
    "list_exchanges": Command("List exchanges.", "[column...]", "Listing exchanges for vhost {vhost} ...", OF_CLUSTER),
    "list_bindings": Command("List bindings.", "[column...]", "Listing bindings for vhost {vhost}...", OF_CLUSTER),
    "list_connections": Command("List open connections.", "[column...]", "Listing connections ...", ("local",)),
    "list_channels": Command("List open channels.", "[column...]", "Listing channels ...", ("local",)),
    "list_consumers": Command("List consumers.", "[column...]", "Listing consumers in vhost {vhost} ...", OF_CLUSTER),
    "list_stream_consumers": Command(
        "List the consumers of streams, and how far each is.",
        "[column...]",
        "Listing stream consumers in vhost {vhost} ...",
        OF_CLUSTER,
    ),
    "add_super_stream": Command(
        "Declare an exchange and the streams that it spreads messages over.",
        "name",
        "Adding super stream {name} to vhost {vhost} ...",
        ("vhost", "partitions", "routing_keys", "max_length_bytes", "max_age", "stream_max_segment_size_bytes"),
    ),
    "delete_super_stream": Command(
        "Delete a super stream and its partitions.", "name", "Deleting super stream {name} of vhost {vhost} ...", VHOST
    ),
    "store_offset": Command(
        "Keep an offset of a stream under a name.",
        "reference stream offset",
        "Storing offset {offset} of stream {stream} as {reference} ...",
        VHOST,
    ),
    "query_offset": Command("Show an offset that is kept.", "reference stream", "", VHOST),
    "delete_offset": Command(
        "Forget an offset that is kept.", "reference stream", "Deleting offset {reference} of stream {stream} ...", VHOST
    ),
    "list_stream_offsets": Command(
        "List the offsets that are kept.", "", "Listing offsets of streams in vhost {vhost} ...", VHOST
    ),
    "quorum_status": Command(
        "Show the members of a quorum queue.", "queue", "Status of quorum queue {queue} on the broker on {data_dir} ...", VHOST
    ),
    "purge_queue": Command(
        "Drop all ready messages of a queue.", "queue", "Purging queue '{queue}' in vhost '{vhost}' ...", VHOST
    ),
    "delete_queue": Command(
        "Delete a queue.",
        "queue",
        "Deleting queue '{queue}' on vhost '{vhost}' ...",
        ("vhost", "if_empty", "if_unused"),
    ),
    "close_connection": Command(
        "Close a connection, by its pid or its name in list_connections.",
        "pid explanation",
        "Closing connection {pid}, reason: {explanation}...",
    ),
    "close_all_connections": Command(
        "Close the connections of a vhost, or all.",
        "explanation",
        "Closing all connections in vhost {vhost}, reason: {explanation}...",
        ("vhost", "everywhere", "limit"),
    ),
    "close_all_user_connections": Command(
        "Close the connections of a user.",
        "username explanation",
        "Closing connections of user {username}, reason: {explanation}...",
    ),
    # definitions
    "export_definitions": Command(
        "Write all definitions to a file in RabbitMQ's form; - is standard output.",
        "file",
        'Exporting definitions in JSON to a file at "{file}" ...',
        ("cluster",),
    ),
    "import_definitions": Command(
        "Import a definitions file of RabbitMQ's form; - or nothing is standard input.",
        "[file]",
        'Importing definitions in JSON from a file at "{file}" ...',
        VHOST,
    ),
}
FILES_OF_NODES: Final = frozenset({"backup_vhost", "restore_vhost"})  # it is the broker that reads or writes them
ASKS_PASSWORD: Final = frozenset({"add_user", "change_password", "authenticate_user"})

# Wherever they stand, before the command or behind it.
GENERAL: Final[tuple[Callable[..., Any], ...]] = (
    click.option("--data-dir", metavar="DIR", help="The broker's data directory, as it was given to the broker."),
    click.option("--config", metavar="FILE", help="The broker's settings, to find its data directory."),
    click.option("-q", "--quiet", is_flag=True, help="Only the result."),
    click.option("-s", "--silent", is_flag=True, help="Only the result, without table headers."),
    click.option("--no-table-headers", is_flag=True, help="No line with the names of columns."),
    click.option(
        "--formatter",
        type=click.Choice(["tsv", "json", "table", "pretty_table", "csv"]),
        metavar="json|table|csv",
        help="Form of lists. [default: a line for each, with tabs]",
    ),
    click.option("-t", "--timeout", type=float, metavar="SECONDS", help="How long the broker may take."),
    click.option("-n", "--node", "node_option", hidden=True),  # of scripts made for rabbitmqctl
    click.option("-l", "--longnames", is_flag=True, hidden=True),
)


# -- asking -------------------------------------------------------------------------------------------------------


def data_path(data_dir: str | None, config: str | None) -> Path:
    """The broker's data directory: as given, else from RABBITPY_DATA_DIR, the settings, or the user's own."""
    data_dir = data_dir or (os.environ.get("RABBITPY_DATA_DIR") if config is None else None)
    if data_dir:
        return Path(data_dir).expanduser()
    from rabbitpy_broker.config import load_config

    given = {key: value for key, value in os.environ.items() if key == "RABBITPY_DATA_DIR"}
    return load_config(Path(config) if config else None, given).node.data_path()


def ask(
    directory: Path, command: str, arguments: Sequence[object], options: Mapping[str, object], timeout: float | None = None
) -> Any:
    """Has the broker on this data directory do a command; returns the result. Raises CtlError."""
    request = json.dumps({"command": command, "arguments": list(arguments), "options": dict(options)})
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout if timeout is not None and timeout > 0 else None)
    with client:
        found = find_socket(directory)
        if found.reason:
            text = f"the broker on {directory} has no control socket (set control_socket, and start it again): {found.reason}"
            raise CtlError(text, os.EX_UNAVAILABLE)
        try:
            with SocketAddress(found.path) as address:
                client.connect(address)
            if found.uid is not None and peer_uid(client) not in (None, found.uid):
                raise CtlError(f"{found.path} is another user's: nothing was asked", os.EX_NOPERM)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            text = f"no broker runs on the data directory {directory} (name another by --data-dir or RABBITPY_DATA_DIR)"
            raise CtlError(text, os.EX_UNAVAILABLE) from None
        except OSError as error:
            text = f"the broker on {directory} cannot be asked: {error.strerror or error}"
            raise CtlError(text, os.EX_UNAVAILABLE) from None
        try:
            client.sendall(request.encode("utf-8") + b"\n")
            with client.makefile("rb") as answers:
                line = answers.readline()
        except TimeoutError:
            raise CtlError(f"the broker did not answer within {timeout:g} s", os.EX_UNAVAILABLE) from None
        except OSError as error:
            raise CtlError(f"the broker has hung up: {error.strerror or error}", os.EX_UNAVAILABLE) from None
    if not line.endswith(b"\n"):
        raise CtlError("the broker has hung up: only its own user may ask, and its log says what went wrong", os.EX_UNAVAILABLE)
    answer = json.loads(line)
    if not answer["ok"]:
        raise CtlError(answer["error"], answer["code"])
    for node in answer.get("missing", ()):
        click.echo(f"Node {node} does not answer, and what it has is not listed", err=True)
    return answer["result"]


# -- showing ------------------------------------------------------------------------------------------------------


def cell(column: str, value: object) -> str:
    """A value as it stands in a line: tables in Erlang's form, as rabbitmqctl has them, and no tab or line end."""
    if column in TABLE_COLUMNS and isinstance(value, list):
        return term_of_table(value)
    if column == "protocol" and isinstance(value, list):
        return "{" + ",".join(map(str, value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def term_of_table(triples: list[Any]) -> str:
    """[[key, type, value], ...] -> [{"key",value},...]"""
    parts = []
    for key, kind, value in triples:
        shown = term_of_table(value) if kind == "table" else term(value)
        parts.append(f"{{{term(key)},{shown}}}")
    return "[" + ",".join(parts) + "]"


def term(value: object) -> str:
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ",".join(term(item) for item in value) + "]"
    return str(value)


class Output:
    """How results are shown."""

    def __init__(self, formatter: str, headers: bool) -> None:
        self.formatter = formatter
        self.headers = headers

    def show(self, result: Any) -> None:
        if isinstance(result, list):
            self.rows(result)
        elif isinstance(result, dict):
            self.status(result)
        elif self.formatter == "json":
            click.echo(json.dumps({"result": "ok"} if result is None else {"result": "ok", "value": result}))
        elif result is not None:
            click.echo(result)

    def rows(self, rows: list[dict[str, Any]]) -> None:
        if self.formatter == "json":
            shown = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
            click.echo("[\n" + "\n,".join(shown) + ("\n]" if shown else "]"))
        elif self.formatter in ("table", "pretty_table"):
            self.table(rows)
        elif self.formatter == "csv":
            cells = [list(rows[0])] if rows and self.headers else []
            cells += [[cell(column, value) for column, value in row.items()] for row in rows]
            for line in cells:
                click.echo(",".join('"' + item.replace('"', '""') + '"' for item in line))
        elif rows:
            lines = ["\t".join(rows[0])] if self.headers else []
            lines += ["\t".join(cell(column, value) for column, value in row.items()) for row in rows]
            click.echo("\n".join(lines))

    def table(self, rows: list[dict[str, Any]]) -> None:
        """As wide as the terminal; what is longer is wrapped. A pipe gets its full width."""
        if not rows:
            return
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, show_header=self.headers, pad_edge=False)
        for column, value in rows[0].items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            table.add_column(column, justify="right" if is_number else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell(column, value)) for column, value in row.items()))
        console = Console()
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console = Console(width=max(80, console.measure(table).maximum))
        console.print(table)

    def status(self, status: dict[str, Any]) -> None:
        if self.formatter == "json":
            click.echo(json.dumps(status))
            return
        sections = ctl_cluster.sections(status) if "disk_nodes" in status else self.sections(status)
        for title, lines in sections.items():
            click.echo(click.style(title, bold=True) + "\n\n" + "\n".join(lines) + "\n")

    def sections(self, status: dict[str, Any]) -> dict[str, list[str]]:
        """What `status` shows under each title."""
        listeners = [f"{one['address']}, protocol: {one['protocol']}" for one in status["listeners"]]
        sections = {
            "Runtime": [
                f"OS PID: {status['pid']}",
                f"OS: {status['os']}",
                f"Uptime (seconds): {status['uptime']}",
                f"Version: {status['version']} ({status['build']}, {status['python']})",
                f"RabbitMQ version: {status['rabbitmq_version']}",
                f"Node name: {status['node_name']}",
            ],
            "Data directory": [f"Node data directory: {status['data_directory']}"],
            "Alarms": [f"{name} alarm is on" for name in status["alarms"]] or ["(none)"],
            "Memory": [
                f"Total memory used: {gigabytes(status['memory_used'])}",
                f"Memory high watermark setting: {watermark(status)}, computed to: {gigabytes(status['memory_limit'])}",
            ],
            "File Descriptors": [f"Total: {status['open_files']}, limit: {status['open_files_limit']}"],
            "Free Disk Space": [
                f"Low free disk space watermark: {gigabytes(status['disk_free_limit'])}",
                f"Free disk space: {gigabytes(status['disk_free'])}",
            ],
            "Totals": [
                f"Connection count: {status['connections']}",
                f"Queue count: {status['queues']}",
                f"Virtual host count: {status['vhosts']}",
            ],
            "Listeners": [f"Interface: {line}" for line in listeners],
        }
        if "workers" in status:
            sections["Workers"] = [
                f"Worker {one['worker']}: {one['state']}, OS PID: {one['pid']}, virtual hosts: {one['vhosts']}, "
                f"connections: {one['connections']}, queues: {one['queues']}, memory: {gigabytes(one['memory'])}"
                for one in status["workers"]
            ]
        return sections


def watermark(status: dict[str, Any]) -> str:
    setting = status["vm_memory_high_watermark_setting"]
    return f"{setting['relative']} of available memory" if "relative" in setting else gigabytes(int(setting["absolute"]))


def gigabytes(size: int) -> str:
    return f"{round(size / 1e9, 4):g} gb"


# -- running ------------------------------------------------------------------------------------------------------


def run(name: str, given: dict[str, Any]) -> None:
    """One command with what was given for it on the command line."""
    command = COMMANDS[name]
    general = click.get_current_context().obj
    for key in general:
        if given.get(key) in (None, False):
            given[key] = general[key]
    directory = data_path(given["data_dir"], given["config"])
    takes_vhost = "vhost" in command.options
    if takes_vhost:
        given["vhost"] = "/" if given["vhost"] is None else given["vhost"]
    formatter = given["formatter"] or "tsv"
    output = Output(formatter, not (given["silent"] or given["no_table_headers"]) and command.headers)
    if given.get("everywhere"):
        output.headers = not (given["silent"] or given["no_table_headers"])
    quiet = given["quiet"] or given["silent"] or formatter == "json" or given.get("file") == "-"
    check_thresholds(name, given)
    ctl_diagnostics.check_arguments(name, given)
    if command.banner and not quiet:
        click.echo(banner(name, command, {**given, "data_dir": directory}))
    if name in ASKS_PASSWORD and given["password"] is None:
        given["password"] = read_password()
    if name in FILES_OF_NODES:
        given["file"] = str(Path(given["file"]).absolute())
    arguments: list[object] = []
    for word in words_of(command):
        value = given[word]
        arguments.extend(value if isinstance(value, tuple) else [] if value is None else [value])
    options = {key: given[key] for key in command.options if key not in LEFT_OUT or given[key] is not None}
    timeout = given["timeout"]
    if name == "export_definitions":
        write_definitions(given["file"], ask(directory, name, [], options, timeout))
    elif name == "import_definitions":
        output.show(ask(directory, name, [read_definitions(given["file"])], options, timeout))
    elif name in ctl_diagnostics.COMMANDS:
        report = ask(directory, name, arguments, {}, timeout)
        as_json = formatter == "json"
        code = ctl_diagnostics.show(name, report, given.get("unit") or "gb", as_json=as_json, quiet=quiet)
        click.get_current_context().exit(code)
    else:
        output.show(ask(directory, name, arguments, options, timeout))
    if name == "add_user" and not quiet:
        click.echo("Done. The user has no permissions yet: see 'rabbitpy-ctl help set_permissions'.")


def check_thresholds(name: str, given: dict[str, Any]) -> None:
    """Refuses a limit that cannot be read, as rabbitmqctl does, before anything is said. Raises BadThreshold."""
    if name == "set_vm_memory_high_watermark":
        memory_threshold(given["fraction"], given["size"])
    elif name == "set_disk_free_limit":
        disk_threshold(given["limit"], given["factor"])


def banner(name: str, command: Command, given: dict[str, Any]) -> str:
    """What rabbitmqctl says before it begins."""
    text = command.banner
    if name == "clear_topic_permissions" and given["exchange"] is not None:
        text = text.replace("topic permissions for", 'topic permissions on "{exchange}" for')
    if name == "delete_queue":
        asked = [word for word in ("empty", "unused") if given[f"if_{word}"]]
        if asked:
            text = text.replace(" ...", " if queue is " + " and ".join(asked) + " ...")
    if name == "clear_user_limits" and given["limit"] == "all":
        text = 'Clearing all limits for user "{username}" ...'
    if name == "set_vm_memory_high_watermark" and given["size"] is not None:
        text = text.replace("{fraction}", "{size} bytes")
    if name == "set_disk_free_limit" and given["factor"] is not None:
        text = text.replace("{limit} bytes", "{factor} times the total RAM")
    if given.get("everywhere"):
        text = {
            "list_vhost_limits": "Listing limits for all vhosts ...",
            "list_user_limits": "Listing limits for all users ...",
            "close_all_connections": "Closing all connections, reason: {explanation}...",
        }[name]
    return text.format(**{key: ", ".join(value) if isinstance(value, tuple) else value for key, value in given.items()})


def read_password() -> str:
    """From the terminal, unseen, or a line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True))
    line = sys.stdin.readline()
    if not line:
        raise CtlError("Password is not provided via argument or stdin", os.EX_DATAERR)
    return line.rstrip("\n")


def write_definitions(file: str, entries: list[tuple[str, Any]]) -> None:
    """The document that the broker's entries make; password hashes are in it, so the file is for its owner only."""
    document: dict[str, Any] = {}
    for section, entry in entries:
        if entry is None:
            document[section] = []
        elif isinstance(entry, dict):
            document[section].append(entry)
        else:
            document[section] = entry
    text = json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True)
    if file == "-":
        click.echo(text)
        return
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(text + "\n")
    except OSError as error:
        raise CtlError(f"{file}: {error.strerror}", os.EX_CANTCREAT) from None


def read_definitions(file: str | None) -> Any:
    try:
        text = sys.stdin.read() if file in (None, "-") else Path(str(file)).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise CtlError(f"{file}: {error.strerror}", os.EX_NOINPUT) from None
    except ValueError as error:
        raise CtlError(f"Failed to deserialise input (format: JSON) (error: {error})", os.EX_DATAERR) from None


# -- the command line ---------------------------------------------------------------------------------------------


def words_of(command: Command) -> list[str]:
    """The names of a command's arguments."""
    return [word.strip("[].") for word in command.arguments.split()]


class NumberedCommand(click.Command):
    """A number below 0 is an argument, no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(NEGATIVE.fullmatch(arg) for arg in args)
        return super().parse_args(ctx, args)


def click_command(name: str, command: Command) -> click.Command:
    """What click needs to know of a command."""

    def callback(**given: Any) -> None:
        run(name, given)

    for word in reversed(command.arguments.split()):
        argument = word.strip("[].")
        many = "..." in word
        callback = click.argument(
            argument, metavar=word.upper() if many else None, nargs=-1 if many else 1, required="[" not in word
        )(callback)
    for option in reversed([OPTIONS[key] for key in command.options]):
        callback = option(callback)
    for option in reversed(GENERAL):
        callback = option(callback)
    return click.command(name, cls=NumberedCommand, help=command.help)(callback)


BETWEEN_BROKERS: Final = ("migrate", "shovel")  # shovel/cli.py has them


class Commands(click.Group):
    """Makes only the command that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*COMMANDS, *BETWEEN_BROKERS, "help", "version"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = COMMANDS.get(cmd_name)
        if cmd_name in BETWEEN_BROKERS:
            from rabbitpy_broker.shovel import cli

            command: click.Command = getattr(cli, cmd_name)
            return command
        return super().get_command(ctx, cmd_name) if found is None else click_command(cmd_name, found)


HELP: Final = {"help_option_names": ["-h", "-?", "--help"]}


@click.group(cls=Commands, context_settings=HELP)
@OPTIONS["vhost"]
def main_group(**given: Any) -> None:
    """Manage the broker that runs on a data directory, with rabbitmqctl's commands.

    COMMAND --help says more. Only the user that the broker runs as, and root, may do this.
    """
    click.get_current_context().obj = given


for _option in reversed(GENERAL):
    _option(main_group)


@main_group.command("help")
@click.argument("command", required=False)
@click.pass_context
def help_(context: click.Context, command: str | None) -> None:
    """Show the commands, or what one of them takes."""
    assert context.parent is not None, "kept by: main_group"
    found = main_group.get_command(context, command) if command else main_group
    if found is None:
        raise click.UsageError(f"Command '{command}' not found.")
    shown = context.parent if found is main_group else click.Context(found, info_name=command, parent=context.parent)
    click.echo(found.get_help(shown))


@main_group.command("version")
def version() -> None:
    """Show the version of this program."""
    from rabbitpy_broker.build_info import describe

    click.echo(describe())


def main() -> NoReturn:
    """The console script."""
    sys.exit(run_command_line(sys.argv[1:]))


def run_command_line(arguments: list[str]) -> int:
    """Returns the exit code."""
    try:
        "".join(arguments).encode("utf-8")
    except UnicodeEncodeError:
        click.echo("Error (argument validation): an argument is not UTF-8", err=True)
        return os.EX_USAGE
    try:
        code = main_group.main(arguments, prog_name="rabbitpy-ctl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return os.EX_USAGE
    except ctl_diagnostics.BadArgument as error:
        click.echo(f"Error (argument validation): {error.format_message()}", err=True)
        return os.EX_DATAERR
    except click.UsageError as error:
        click.echo(f"Error (argument validation): {error.format_message()}", err=True)
        if error.ctx is not None:
            click.echo(f"\n{error.ctx.get_usage()}", err=True)
        return os.EX_USAGE
    except click.exceptions.Abort:
        return 130  # by Ctrl-C
    except BadThreshold as error:
        click.echo(f"Error (argument validation): {error}", err=True)
        return error.code
    except ConfigError as error:
        click.echo(f"Error:\n{error}", err=True)
        return os.EX_CONFIG
    except CtlError as error:
        click.echo(f"Error:\n{error}", err=True)
        return error.code
    return code if isinstance(code, int) else os.EX_OK


if __name__ == "__main__":
    main()
