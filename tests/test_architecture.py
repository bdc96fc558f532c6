"""Import levels: a module imports only from lower levels or its own, and no files import each other in a circle.

Every import statement counts, at any depth of the file and under TYPE_CHECKING too: a type from above is a dependency on above.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "rabbitpy_broker"
ROOT = Path(__file__).parent.parent / PACKAGE

# The package's floors, lowest first, by the first name after `rabbitpy_broker.`
LEVELS = (
    {"errors", "message", "config", "destination", "log", "build_info", "erlang_text", "thresholds", "questions"},
    {"wire", "storage", "events"},
    {"queues"},
    {"routing"},
    {"vhost", "durable_queues", "definitions", "users", "policies", "limits", "authentication"},
    {"protocol"},
    {
        "alarms", "auth", "broker", "data_dir", "invariants", "net", "metrics", "management", "daemon", "doctor", "healthcheck",
        "inspect_cli", "shovel", "slices", "stats", "ctl", "ctl_cluster", "ctl_diagnostics", "process_memory", "stopping",
        "systemd", "upkeep", "workers", "__main__", "cluster", "hosted_vhosts", "replicated_vhosts", "plain_backups",
        "large_pages",
    },
    {"testing"},
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}

# Library -> the parts or modules that may import it.
ONLY_IN = {
    "pamqp": {"wire"},
    "asyncio": {
        "auth", "broker", "cluster", "daemon", "hosted_vhosts", "management", "net", "plain_backups", "replicated_vhosts",
        "shovel", "slices", "stopping", "testing", "upkeep", "workers",
    },
    "uvloop": {"daemon", "testing", "workers"},
    "aiohttp": {"auth", "management", "net", "shovel", "workers"},
    "aiokafka": {"cluster"},
    "asyncpg": {"cluster"},
    "jwt": {"auth"},
    "cryptography": {"auth"},
    "prometheus_client": {"metrics"},
    "sqlite3": {"definitions"},
    "click": {"__main__", "ctl", "ctl_diagnostics", "healthcheck", "shovel"},
}
LEAVES = {"pipeline"}  # nothing imports it
FOR_LEAVES = {"pipeline", "events"}  # all that they import of this package: themselves, and the layout of the event journal


def modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


MODULES = dict(modules())


def imports(file: Path) -> Iterator[str]:
    """Every module that a file names in an import, `from package import module` resolved to the module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}".removeprefix(f"{PACKAGE}.")
                yield f"{PACKAGE}.{inner}" if inner in MODULES else str(node.module)


def part(module: str) -> str:
    return module.partition(".")[0]


OURS = [module for module in MODULES if module and part(module) not in LEAVES]


def test_every_module_has_a_level():
    assert {part(module) for module in OURS} <= set(LEVEL_OF)
    assert "errors" in OURS


@pytest.mark.parametrize("module", OURS)
def test_imports_go_down(module: str):
    for name in imports(MODULES[module]):
        package, _, target = name.partition(".")
        if package != PACKAGE or not target:
            continue
        assert part(target) not in LEAVES, f"{module} imports {target}"
        if part(target) != part(module):
            level, target_level = LEVEL_OF[part(module)], LEVEL_OF[part(target)]
            same_floor = level == target_level and {part(module), part(target)} != {"wire", "storage"}
            assert target_level < level or same_floor, f"{module} (level {level}) imports {target} (level {target_level})"


@pytest.mark.parametrize("module", OURS)
def test_libraries_are_imported_only_where_they_belong(module: str):
    for name in imports(MODULES[module]):
        allowed = ONLY_IN.get(part(name))
        if allowed is not None:
            assert part(module) in allowed or module in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) in LEAVES])
def test_leaves_import_nothing_of_the_daemon(module: str):
    for name in imports(MODULES[module]):
        package, _, target = name.partition(".")
        if package == PACKAGE:
            assert part(target) in FOR_LEAVES, f"{module} imports {name}"


def imported_here() -> dict[str, list[str]]:
    """For each file of the daemon the others that it imports."""
    found: dict[str, list[str]] = {}
    for module in OURS:
        targets = {name.partition(".")[2] for name in imports(MODULES[module]) if part(name) == PACKAGE}
        found[module] = sorted(targets & set(OURS) - {module})
    return found


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """The nodes from which a way leads back to themselves, those that reach each other together."""
    reached: dict[str, set[str]] = {}
    for start, targets in graph.items():
        seen: set[str] = set()
        todo = list(targets)
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo.extend(graph[node])
        reached[start] = seen
    knots = {
        tuple(sorted(other for other in reached[node] if node in reached[other])) for node in graph if node in reached[node]
    }
    return [list(knot) for knot in sorted(knots)]


def test_no_files_import_each_other_in_a_circle():
    assert circles(imported_here()) == []


def test_a_circle_is_seen():
    assert circles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["a"]}) == [["a", "b", "c"]]


def sizes(source: str) -> Iterator[tuple[str, int, int, str]]:
    """Name, lines, attributes and docstring of each class."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        assigned = [inner for inner in ast.walk(node) if isinstance(inner, (ast.Assign, ast.AnnAssign))]
        targets = [one for inner in assigned for one in (inner.targets if isinstance(inner, ast.Assign) else [inner.target])]
        names = {
            one.attr
            for one in targets
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
        }
        yield node.name, (node.end_lineno or 0) - node.lineno + 1, len(names), ast.get_docstring(node) or ""


def test_a_large_class_says_why():
    """More than 500 lines, or 25 attributes: then its docstring has a line that begins with "Large"."""
    large = {
        f"{module}.{name}": docstring
        for module, file in modules()
        for name, lines, attributes, docstring in sizes(file.read_text(encoding="utf-8"))
        if lines > 500 or attributes > 25
    }
    silent = [name for name, docstring in large.items() if not re.search(r"^Large", docstring, re.MULTILINE)]
    assert silent == []
    assert set(large) == {
        "protocol.connection.Connection", "queues.queue.Queue", "queues.variable_queue.VariableQueue", "vhost.VHost",
    }  # fmt: skip


def test_no_entry_is_dead():
    """Every level names something that is there, and every library is imported by somebody who may."""
    assert set(LEVEL_OF) == {part(module) for module in OURS}
    assert {part(module) for module in MODULES if module} >= LEAVES
    for library, places in ONLY_IN.items():
        users = {part(module) for module in OURS if library in map(part, imports(MODULES[module]))}
        assert users == set(places), library


def test_the_check_sees_imports_at_any_depth(tmp_path: Path):
    """The check itself: nested, TYPE_CHECKING and `from package import module` imports are all found."""
    file = tmp_path / "sample.py"
    file.write_text(
        "import asyncio.events\n"
        "from rabbitpy_broker import errors\n"
        "if TYPE_CHECKING:\n    from rabbitpy_broker.message import Message\n"
        "def f():\n    import pamqp\n"
    )
    assert set(imports(file)) == {"asyncio.events", "rabbitpy_broker.errors", "rabbitpy_broker.message", "pamqp"}
