"""Requests made from the OpenAPI description, thousands of them, well-formed and not: no fault of ours, nothing undescribed.

RABBITPY_TEST_SCHEMATHESIS_S says for how many seconds; by default so few that it is a check of the description, rather than a
search. CI takes a minute, of requests that are the same each time. An hour, of others:
`RABBITPY_TEST_SCHEMATHESIS_S=3600 pytest -n0 --timeout 4000 tests/management/test_schemathesis.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from management.conftest import Http

SECONDS = int(os.environ.get("RABBITPY_TEST_SCHEMATHESIS_S", "20"))
# Checks that answer 503 for most of what they may be asked, streams that do not end, and what would take the run its own user:
# names that an answer has are tried, too.
LEFT_OUT = (
    r"^GET /(health/checks/(certificate-expiration|port-listener|protocol-listener)|events$)|/tail$"
    r"|^(PUT|POST|DELETE) /(users|permissions|topic-permissions)"
)
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

pytestmark = [pytest.mark.own, pytest.mark.timeout(SECONDS + 160)]


def test_no_request_that_the_description_allows_is_a_fault(http: Http, api_broker: BrokerProcess, tmp_path: Path) -> None:
    http("PUT", "users/fuzz", {"password": "fuzz", "tags": "administrator"})
    http("PUT", "permissions/%2F/fuzz", {"configure": ".*", "write": ".*", "read": ".*"})
    address = f"http://{api_broker.management}/api"
    long = SECONDS > 60  # another sequence each time
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{address}/openapi.json", "--url", address,
        "--auth", "fuzz:fuzz", "--phases", "coverage,fuzzing", "--checks", CHECKS, "--exclude-name-regex", LEFT_OUT,
        "--max-time", str(SECONDS), "--max-examples", "500" if SECONDS >= 60 else "3", "--no-shrink", "--no-color",
        "--request-timeout", "60", "--continue-on-failure",
        *(("--generation-database", "none") if long else ("--generation-deterministic",)),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS + 120
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert http.get("whoami", user="fuzz")["name"] == "fuzz"
    api_broker.assert_clean_log()
