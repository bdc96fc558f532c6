"""Builds what lies in java/ against RabbitMQ's Java client, and says how its programs are run."""

from __future__ import annotations

from pathlib import Path

from external import HERE, installed, require_tools, run_install
from perftest_runner import JVM_FLAGS

SOURCES = ("Cases.java", "Idle.java", "Json.java", "Login.java", "Mode.java")


def install(directory: Path) -> None:
    run_install(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"], directory)
    run_install(["javac", "-nowarn", "-d", "classes", "-cp", "jars/*", *SOURCES], directory)


def java_command(main: str) -> list[str]:
    """The command of one of the programs; the client is fetched and compiled for when that was not done yet."""
    require_tools("javac", "java", "mvn")
    directory = installed("java-client", [HERE / "java" / name for name in ("pom.xml", *SOURCES)], install)
    return ["java", *JVM_FLAGS, "-cp", f"{directory}/classes:{directory}/jars/*", main]
