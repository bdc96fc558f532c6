"""Three Kafka nodes on this machine, in KRaft mode: for tests, measurements and a first look.

    python -m perf.engines.kafka FOLDER        starts them, prints the URL for `cluster.engine`, stops them at Ctrl-C

Each is a broker and a controller in one, listens on loopback ports that are free, and keeps all it has in the folder. The jars
come from Maven Central, once, into RABBITPY_TEST_CACHE or ~/.cache/rabbitpy-tests. Needs Java 17, and Maven for the jars. As root
the nodes run as the user 65534. Time-outs are short, so that a node that is gone is noticed within seconds; heaps are small.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from perf.engines.servers import (
    HERE,
    PATIENCE,
    EngineFailed,
    Place,
    Server,
    Servers,
    command_line,
    free_ports,
    hand_over,
)

FETCH_TIMEOUT = 600.0
VERSION = "3.9.1"
NODES = (1, 2, 3)
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rabbitpy</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
JVM_FLAGS = (
    "-Xms64m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)  # fmt: skip
# Quick to notice that a node is gone, and small: Kafka's defaults are for machines of its own.
SETTINGS = """
process.roles=broker,controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAIN
listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT
auto.create.topics.enable=false
controlled.shutdown.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
replica.lag.time.max.ms=3000
replica.socket.timeout.ms=3000
replica.fetch.wait.max.ms=200
controller.socket.timeout.ms=3000
request.timeout.ms=3000
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=1
background.threads=2
log.cleaner.enable=false
log.retention.check.interval.ms=2000
log.initial.task.delay.ms=2000
file.delete.delay.ms=1000
offsets.topic.replication.factor=3
"""


def is_installable() -> bool:
    """Whether this machine has what fetches and runs Kafka."""
    return all(shutil.which(program) is not None for program in ("java", "mvn"))


def jars() -> Path:
    """The folder with Kafka and what it depends on; fetched from Maven Central the first time."""
    configured = os.environ.get("RABBITPY_TEST_CACHE")
    cache = Path(configured) if configured else Path.home() / ".cache" / "rabbitpy-tests"
    target = cache / f"kafka-{VERSION}-{hashlib.sha256(POM.encode()).hexdigest()[:8]}"
    cache.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            fetch(target)
            (target / "complete").touch()
    return target / "jars"


def fetch(folder: Path) -> None:
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        raise EngineFailed(f"no {' and no '.join(missing)}: apt-get install default-jre-headless maven")
    (folder / "pom.xml").write_text(POM)
    # Java takes the home from the user database, where a user of a container may have none; all others take HOME.
    environment = {"MAVEN_OPTS": f"-Duser.home={Path.home()}", **os.environ}
    done = subprocess.run(
        ["mvn", "-q", "-B", PLUGIN, "-DoutputDirectory=jars"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=FETCH_TIMEOUT, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise EngineFailed(f"mvn ended with {done.returncode}: {done.stdout[-3000:]}")


def kafka_uuid() -> str:
    """As Kafka makes them: none begins with a hyphen, which its tools would take for an option (one in 64 did)."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


class Node(Server):
    def __init__(self, number: int, folder: Path, port: int, jar_folder: Path, place: Place = HERE) -> None:
        super().__init__(str(number), folder, port, place)
        self.number = number
        self._jars = jar_folder

    @property
    def properties(self) -> Path:
        return self.folder.parent / f"{self.number}.properties"

    def java(self, *arguments: str) -> list[str]:
        return ["java", *JVM_FLAGS, "-cp", f"{self._jars}/*", *arguments]

    def command(self) -> list[str]:
        return self.java("kafka.Kafka", str(self.properties))

    def answers(self) -> bool:
        """It takes connections once the controller has let it in."""
        with contextlib.suppress(OSError), socket.create_connection((self.place.host, self.port), 1.0):
            return True
        return False


class KafkaServers(Servers):
    """Three nodes. `nodes` are by number."""

    def __init__(self, folder: Path, places: Sequence[Place] = (HERE, HERE, HERE)) -> None:
        """`folder` is empty, and can be reached by the user 65534 when this runs as root."""
        self.folder = folder
        jar_folder = jars()
        if os.getuid() == 0:  # root's cache is for nobody else to read
            jar_folder = Path(shutil.copytree(jar_folder, folder / "jars"))
        ports = free_ports(2 * len(NODES))
        self._controllers = dict(zip(NODES, ports[: len(NODES)], strict=True))
        self.nodes = {
            number: Node(number, folder / str(number), port, jar_folder, place)
            for number, port, place in zip(NODES, ports[len(NODES) :], places, strict=True)
        }

    @property
    def url(self) -> str:
        return f"kafka://{','.join(node.address for node in self.nodes.values())}/rabbitpy"

    @property
    def all(self) -> list[Node]:
        return list(self.nodes.values())

    def quorum(self) -> list[Node]:
        """Any two: neither is there then a second replica, nor a majority of the controllers."""
        return self.all[:2]

    def start(self) -> None:
        hand_over(self.folder)
        for node in self.nodes.values():
            node.properties.write_text(self._properties(node))
        self._format()
        self.start_again()

    def _properties(self, node: Node) -> str:
        voters = ",".join(f"{number}@{self.nodes[number].place.host}:{port}" for number, port in self._controllers.items())
        controller = self._controllers[node.number]
        return (
            f"{SETTINGS}node.id={node.number}\nlog.dirs={node.folder}\ncontroller.quorum.voters={voters}\n"
            f"listeners=PLAIN://{node.address},CONTROLLER://{node.place.host}:{controller}\n"
            f"advertised.listeners=PLAIN://{node.address}\n"
        )

    def _format(self) -> None:
        """Formats one folder, which takes a JVM and a while, and makes the others out of it."""
        first, *others = self.nodes.values()
        done = subprocess.run(
            first.place.command(
                *first.java("kafka.tools.StorageTool", "format", "-t", kafka_uuid(), "-c", str(first.properties))
            ),
            capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/",
        )  # fmt: skip
        if done.returncode:
            raise EngineFailed(f"format: {done.stdout}{done.stderr}")
        for node in others:
            node.folder.mkdir(exist_ok=True)
            subprocess.run(["cp", "-a", f"{first.folder}/.", str(node.folder)], check=True)
            meta = node.folder / "meta.properties"
            lines = [line for line in meta.read_text().splitlines() if not line.startswith(("node.id=", "directory.id="))]
            meta.write_text("\n".join([*lines, f"node.id={node.number}", f"directory.id={kafka_uuid()}"]) + "\n")


main = command_line(KafkaServers)

if __name__ == "__main__":
    main()
