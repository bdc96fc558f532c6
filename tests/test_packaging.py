"""The package as it is built and installed: which build runs, what the wheel holds, and how the command line answers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import rabbitpy_broker
from broker_process import broker_command, ctl_command
from perf.brokers import DEFAULT_COMMAND
from rabbitpy_broker.build_info import describe, is_compiled

ROOT = Path(__file__).parent.parent
EXPECTED = os.environ.get("RABBITPY_EXPECT_COMPILED")

# What a build may read; a copy of it is built, so that the checkout stays clean and parallel tests do not meet in build/.
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py", "pyspark_rabbitpy_amqp.py")

Build = Callable[..., tuple[Path, str]]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*broker_command(), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **(env or {})},
        check=False,
    )


def python(*arguments: str) -> str:
    """What a Python that is started in the checkout prints; it must end well."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(RABBITPY_COMPILE="0")` builds a wheel as pip does, without pip's isolation, and returns it with what was printed."""

    def make(*, succeeds: bool = True, **env: str) -> tuple[Path, str]:
        source = tmp_path / "source"
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "rabbitpy_broker", source / "rabbitpy_broker", ignore=ignore)
        for name in SOURCES:
            shutil.copy(ROOT / name, source)
        environ = {key: value for key, value in os.environ.items() if key != "RABBITPY_COMPILE"}
        done = subprocess.run(
            [sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"],
            cwd=source,
            env={**environ, **env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert (done.returncode == 0) is succeeds, printed
        wheels = list(tmp_path.glob("*.whl"))
        return (wheels[0] if wheels else tmp_path), printed

    return make


def test_the_build_that_runs_is_the_one_expected():
    """RABBITPY_EXPECT_COMPILED is set by .ci/run, so that neither build can pass for the other."""
    if EXPECTED:
        assert is_compiled() is (EXPECTED == "1")
    kind = "compiled" if is_compiled() else "interpreted"
    assert f"rabbitpy-broker {rabbitpy_broker.__version__} ({kind}, " in run("--version").stdout


# Every way in which tests and tools start the package; each prints which build it is.
STARTS = {
    "broker": [*broker_command(), "--version"],
    "ctl": [*ctl_command(), "version"],
    "perf": [*shlex.split(DEFAULT_COMMAND), "--version"],
}


@pytest.mark.parametrize("command", STARTS.values(), ids=STARTS)
def test_what_is_started_is_the_package_that_is_installed(command: list[str], tmp_path: Path):
    """Whatever the current folder holds: in the checkout that is the same package, not compiled."""
    (tmp_path / "rabbitpy_broker").mkdir()
    (tmp_path / "rabbitpy_broker" / "__init__.py").write_text("raise SystemExit('the current folder')\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert (done.stdout, done.stderr) == (f"{describe()}\n", "")


@pytest.mark.parametrize("first", ["", "import perf.brokers; "], ids=["tests", "perf"])
def test_what_is_imported_is_the_package_that_is_installed(first: str):
    """The one that a Python finds which is told not to look into the current folder."""
    show = "import rabbitpy_broker; print(rabbitpy_broker.__file__)"
    found = python("-c", first + show) if first else rabbitpy_broker.__file__
    assert found == python("-P", "-c", show)


def test_that_is_so_when_pytest_is_started_as_a_module(tmp_path: Path):
    test = f"{__file__}::test_what_is_imported_is_the_package_that_is_installed[tests]"
    assert "1 passed" in python("-m", "pytest", "-n0", "-o", f"cache_dir={tmp_path}", test)


def test_the_sources_stay_beside_the_compiled_modules():
    package = Path(rabbitpy_broker.__file__).parent
    extensions = list(package.rglob("*.so"))
    assert bool(extensions) is is_compiled()
    assert [file for file in extensions if not file.with_name(file.name.split(".")[0] + ".py").exists()] == []


def test_a_build_without_compiling_is_a_pure_wheel(build: Build):
    wheel, printed = build(RABBITPY_COMPILE="0")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "***" not in printed
    names = zipfile.ZipFile(wheel).namelist()
    assert {"rabbitpy_broker/__main__.py", "rabbitpy_broker/message.py", "rabbitpy_broker/py.typed"} <= set(names)
    assert "pyspark_rabbitpy_amqp.py" in names  # where Spark looks for data sources
    pages = [file for file in (ROOT / "rabbitpy_broker" / "management" / "www").rglob("*") if file.is_file()]
    assert {str(file.relative_to(ROOT)) for file in pages} <= set(names)
    assert not [name for name in names if not name.startswith(("rabbitpy_broker", "pyspark_rabbitpy_"))]


def test_without_a_c_compiler_the_package_is_built_interpreted_with_a_warning(build: Build):
    wheel, printed = build(CC="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "*** Building the INTERPRETED package" in printed
    assert "no-such-compiler" in printed


def test_a_build_that_must_compile_fails_without_a_c_compiler(build: Build):
    _, printed = build(succeeds=False, RABBITPY_COMPILE="1", CC="no-such-compiler")
    assert "no-such-compiler" in printed


def test_a_config_error_is_one_line_and_exit_code_2(tmp_path: Path):
    file = tmp_path / "broker.toml"
    file.write_text("heartbeet = 1\n")
    done = run("--config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"rabbitpy-broker: {file}: unknown key: heartbeet\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "nowhere"], "listeners: must be HOST:PORT"),
        (["--log-level", "loud"], "command line: log.level: Invalid enum value 'loud'"),
        (["--log-format", "xml"], "command line: log.format: Invalid enum value 'xml'"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(arguments: list[str], complaint: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"rabbitpy-broker: {complaint}")
    assert done.stderr.count("\n") == 1


def test_a_bad_variable_is_one_line_and_exit_code_2():
    done = run(env={"RABBITPY_HEARTBEAT": "often"})
    assert (done.returncode, done.stderr) == (2, "rabbitpy-broker: environment: heartbeat: Expected `int`, got `str`\n")
