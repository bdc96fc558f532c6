"""A short run of the fuzzer; `python -m fuzz`, in tests/, makes long ones."""

from __future__ import annotations

import pytest

from fuzz.byte_fuzzer import check_memory, make_session, run_iteration

SEED = 1


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_no_session_upsets_the_broker(first):
    for iteration in range(first, first + 40):
        run_iteration(SEED, iteration)


def test_nothing_is_left_of_sessions_that_are_over():
    check_memory(SEED, rounds=4, sessions=8)


def test_a_session_is_the_same_whenever_it_is_made():
    assert make_session(SEED, 5) == make_session(SEED, 5) != make_session(SEED + 1, 5)
