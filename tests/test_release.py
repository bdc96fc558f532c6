"""What a release must agree on, and what its files say; the builds themselves are `packaging/release.py`'s to try."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

import rabbitpy_broker
from rabbitpy_broker import build_info

ROOT = Path(__file__).parent.parent


def load_release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "packaging" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load_release()

BEFORE = "## [1.2.2] - 2026-01-01\n\n- Some.\n"
RELEASED = f"# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- All.\n\n{BEFORE}"


@pytest.mark.parametrize(
    ("version", "text", "complaint"),
    [
        ("1.2.3", RELEASED, ""),
        ("1.2.3", RELEASED.replace("## [Unreleased]\n\n", ""), ""),
        ("1.2.4", RELEASED, "the package is 1.2.4, and CHANGELOG.md begins with 1.2.3"),
        ("1.2.3", RELEASED.replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"), "the package is 1.2.3, and CHANGELOG.md"),
        ("1.2.3", RELEASED.replace(" - 2026-01-02", ""), "CHANGELOG.md does not say when 1.2.3 was released"),
        ("1.2.3", RELEASED.replace("### Added\n\n- All.\n", ""), "CHANGELOG.md says nothing of 1.2.3"),
        ("1.2.3", "# Changelog\n", "CHANGELOG.md has no sections"),
    ],
)
def test_version_and_changelog_agree(version: str, text: str, complaint: str) -> None:
    found = release.disagreement(version, text)
    assert found.startswith(complaint)
    assert bool(found) is bool(complaint)


def test_what_is_here_is_a_release_or_unreleased() -> None:
    version = release.read_version((ROOT / "rabbitpy_broker" / "__init__.py").read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert version == rabbitpy_broker.__version__
    assert "" in (release.disagreement(version, changelog), release.disagreement(version, changelog, unreleased=True))


@pytest.mark.parametrize(
    ("wheel", "source"),
    [
        ("rabbitpy_broker-1.2.3-cp311-cp311-linux_x86_64.whl", "rabbitpy_broker-1.2.3.tar.gz"),
        ("rabbitpy_broker-1.2.3-py3-none-any.whl", "rabbitpy_broker-1.2.3.tar.gz"),
        ("rabbitpy_broker-1.2.2-cp311-cp311-manylinux_2_17_x86_64.whl", "rabbitpy_broker-1.2.3.tar.gz"),
        ("rabbitpy_broker-1.2.3-cp311-cp311-manylinux_2_17_x86_64.whl", "rabbitpy_broker-1.2.2.tar.gz"),
    ],
)
def test_files_of_another_version_or_of_one_machine_are_no_release(wheel: str, source: str) -> None:
    with pytest.raises(SystemExit):
        release.check_wheel_names(Path(wheel), Path(source), "1.2.3")


def test_good_names_are_taken() -> None:
    wheel = Path("rabbitpy_broker-1.2.3-cp311-cp311-manylinux_2_17_x86_64.whl")
    release.check_wheel_names(wheel, Path("rabbitpy_broker-1.2.3.tar.gz"), "1.2.3")


def test_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(release.sums([tmp_path / "one", tmp_path / "two"]))
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "one: OK\ntwo: OK\n")


@pytest.mark.parametrize(("gil", "said"), [(True, ", free-threaded, GIL on"), (False, ", free-threaded")])
def test_a_free_threaded_python_is_named(monkeypatch: pytest.MonkeyPatch, gil: bool, said: str) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: gil, raising=False)
    assert build_info.python().endswith(said)
    assert build_info.describe().endswith(f"{said})")
