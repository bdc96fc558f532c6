"""Installs amqplib from npm, and says how the scripts in node/ are run with it."""

from __future__ import annotations

from pathlib import Path

from external import HERE, installed, require_tools, run_install


def install(directory: Path) -> None:
    run_install(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], directory)


def node_command(script: str) -> list[str]:
    """The command of one of the scripts; amqplib is installed when that was not done yet."""
    require_tools("node", "npm")
    pins = [HERE / "node" / name for name in ("package.json", "package-lock.json")]
    modules = installed("amqplib", pins, install) / "node_modules"
    return ["env", f"NODE_PATH={modules}", "node", str(HERE / "node" / script)]
