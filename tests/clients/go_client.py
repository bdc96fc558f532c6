"""Builds what lies in go/ against amqp091-go."""

from __future__ import annotations

from pathlib import Path

from external import HERE, installed, require_tools, run_install

SOURCES = ("go.mod", "go.sum", "main.go", "idle.go")


def install(directory: Path) -> None:
    run_install(["go", "build", "-mod=readonly", "-o", "client", "."], directory)


def go_command() -> list[str]:
    """The command of the program; it is built when that was not done yet."""
    require_tools("go")
    return [str(installed("amqp091-go", [HERE / "go" / name for name in SOURCES], install) / "client")]
