"""The documents say what is there: methods, arguments, tests, files, events, metrics and links are compared with the code."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from rabbitpy_broker.protocol.handshake import CAPABILITIES
from rabbitpy_broker.queues.arguments import CONFIRM_MODES, verified_arguments
from rabbitpy_broker.routing.resolve import EXCHANGE_TYPES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rabbitpy_broker"
TESTS = ROOT / "tests"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SUPPORT = (ROOT / "docs" / "amqp-support.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

VERIFIED_ARGUMENTS = sorted({*verified_arguments("classic"), *verified_arguments("quorum")})
STATUSES = {"supported", "differs", "refused", "no effect yet", "ignored"}
TEST_NAME = re.compile(r"`((?:\w+/)*test_\w+\.py)::(test_\w+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def functions_of(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every table, header rows and rulers too."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]


def first_cells(text: str) -> set[str]:
    """What stands in backticks in the first column of any table."""
    return {name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def in_words(method: str) -> str:
    """`Basic.RecoverAsync` -> `basic.recover-async`."""
    class_name, _, rest = method.partition(".")
    return class_name.lower() + "." + re.sub(r"(?<!^)([A-Z])", r"-\1", rest).lower()


# --- AMQP ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(in_words(cls.name) for cls in commands.INDEX_MAPPING.values()))
def test_every_method_stands_in_the_table(method: str) -> None:
    assert method in first_cells(SUPPORT)


@pytest.mark.parametrize("argument", VERIFIED_ARGUMENTS)
def test_every_compared_queue_argument_stands_in_the_table(argument: str) -> None:
    assert argument in first_cells(SUPPORT)


def test_every_property_capability_and_exchange_type_stands_in_the_table() -> None:
    known = {*commands.Basic.Properties.attributes(), *CAPABILITIES}
    known -= {"message_type"}  # pamqp's name for `type`
    known |= set(EXCHANGE_TYPES)
    assert known - first_cells(SUPPORT) == set()


def test_every_row_has_a_status() -> None:
    column = None
    checked = 0
    for row in rows(SUPPORT):
        if "status" in row[1:]:
            column = row.index("status")
        elif row[0] in ("status", "difference"):
            column = None
        elif column is not None and not row[0].startswith("-"):
            assert row[column] in STATUSES, row
            checked += 1
    assert checked > len(commands.INDEX_MAPPING) + len(VERIFIED_ARGUMENTS)


def test_confirm_modes_are_explained() -> None:
    text = (ROOT / "docs" / "confirms.md").read_text(encoding="utf-8")
    assert [mode for mode in CONFIRM_MODES if f"`{mode}`" not in text] == []


def test_every_difference_that_a_test_marks_is_listed() -> None:
    differing = {
        node.name
        for file in (TESTS / "behaviour").glob("test_*.py")
        for node in functions_of(file)
        if any("mark.differs" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
    listed = {name for _, name in TEST_NAME.findall(SUPPORT.partition("## Differences from RabbitMQ")[2])}
    assert differing - listed == set()


# --- tests, links --------------------------------------------------------------------------------------------------------


@functools.cache
def names_in(file: str) -> frozenset[str]:
    path = TESTS / file
    return frozenset(node.name for node in functions_of(path)) if path.is_file() else frozenset()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_test_that_is_named_exists(document: Path) -> None:
    named = TEST_NAME.findall(document.read_text(encoding="utf-8"))
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []


def test_the_support_table_names_tests() -> None:
    assert len(TEST_NAME.findall(SUPPORT)) > len(commands.INDEX_MAPPING)


def anchors_of(text: str) -> set[str]:
    """The anchors that a forge makes of headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    broken = []
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []


# --- the code ------------------------------------------------------------------------------------------------------------


def expanded(name: str) -> list[str]:
    """`routing/{direct,fanout}.py` -> both."""
    head, brace, rest = name.partition("{")
    if not brace:
        return [name]
    choices, _, tail = rest.partition("}")
    return [head + choice + tail for choice in choices.split(",")]


def test_the_architecture_names_every_file_and_no_other() -> None:
    table = ARCHITECTURE.partition("## Levels")[2].partition("\n## ")[0]
    named = {
        file
        for row in rows(table)
        if len(row) == 3
        for name in re.findall(r"`([^`]+\.py)`", row[1])
        for file in expanded(name)
    }
    existing = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"}
    assert named == existing


def members() -> dict[str, set[str]]:
    """Methods and attributes of each class of the package, inherited ones left out."""
    found: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                for inner in ast.walk(node):
                    if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        names.add(inner.name)
                    elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        names.add(inner.attr)
    return found


def test_the_architecture_names_no_function_that_is_not_there() -> None:
    known = members()
    named = re.findall(r"`([A-Z]\w+)\.([a-z_]\w*)", ARCHITECTURE)
    assert [f"{owner}.{name}" for owner, name in named if name not in known.get(owner, ())] == []
    assert named


def logged_events() -> set[str]:
    """The first argument of every log call: a text, or a variable that one of several texts is assigned to."""
    events: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for function in functions_of(file):
            inside = list(ast.walk(function))
            assigned = {
                target.id: node.value
                for node in inside
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for node in inside:
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                is_log = ast.unparse(node.func.value).split(".")[-1] == "log"
                if is_log and node.func.attr in ("debug", "info", "warning", "error", "exception"):
                    event = node.args[0]
                    if isinstance(event, ast.Name):
                        event = assigned[event.id]
                    events |= {part.value for part in ast.walk(event) if isinstance(part, ast.Constant)}
    return events


def test_every_log_event_is_listed_and_every_listed_one_is_logged() -> None:
    assert first_cells(OPERATIONS.partition("## Log")[2].partition("\n## ")[0]) == logged_events()


def test_every_metric_that_is_named_exists() -> None:
    source = (PACKAGE / "metrics.py").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:rabbitmq|rabbitpy)_\w+[a-z]\b", OPERATIONS)) - {"rabbitmq_prometheus", "rabbitpy_broker"}
    quoted = set(re.findall(r'"(\w+)"', source))
    assert {name for name in named if not {name, name.removeprefix("rabbitmq_")} & quoted} == set()
    assert len(named) > 10
