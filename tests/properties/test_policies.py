"""Policies against a model that looks at all of them, one by one, each time."""

from __future__ import annotations

import re
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.policies import Policies, Policy

NAMES = ("a", "b", "ab", "ba", "")
NUMBERS = ("message-ttl", "max-length", "expires")


class Given(NamedTuple):
    pattern: str
    apply_to: str
    priority: int
    definition: dict[str, object]


numbers = st.dictionaries(st.sampled_from(NUMBERS), st.integers(1, 3), min_size=1)
definitions_of_policies = st.one_of(
    numbers,
    st.builds(lambda values, mode: {**values, "queue-mode": mode}, numbers, st.sampled_from(["lazy", "default"])),
    st.builds(lambda values: {**values, "max-age": "1D"}, numbers),
)


def steps(definition: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[Given | None]:
    """A policy that is set, or None for one that is cleared."""
    patterns = st.sampled_from(["", "a", "^a", "^b$", "b"])
    apply_to = st.sampled_from(["all", "queues", "exchanges"])
    return st.none() | st.builds(Given, patterns, apply_to, st.integers(-1, 1), definition)


names_of_policies = st.sampled_from(["p", "q", "r", "s"])
changes = st.lists(
    st.one_of(
        st.tuples(st.just(False), names_of_policies, steps(definitions_of_policies)),
        st.tuples(st.just(True), names_of_policies, steps(numbers)),
    ),
    max_size=12,
)


def expected(model: dict[str, Given], kind: str, name: str) -> str | None:
    best: str | None = None
    for policy_name in sorted(model):
        policy = model[policy_name]
        if policy.apply_to not in ("all", kind) or not re.search(policy.pattern, name):
            continue
        if kind == "queues" and "max-age" in policy.definition:
            continue
        if best is None or policy.priority > model[best].priority:
            best = policy_name
    return best


def name_of(policy: Policy | None) -> str | None:
    return None if policy is None else policy.name


@given(changes)
def test_the_right_policies_apply_and_merge(steps: list[tuple[bool, str, Given | None]]) -> None:
    definitions = Definitions(None)
    policies = Policies(definitions, "/")
    models: dict[bool, dict[str, Given]] = {False: {}, True: {}}
    for operator, name, step in steps:
        if step is not None:
            models[operator][name] = step
            (policies.set_operator if operator else policies.set)(name, *step)
        elif models[operator].pop(name, None) is not None:
            (policies.clear_operator if operator else policies.clear)(name)
    check(policies, models)
    check(Policies(definitions, "/"), models)
    definitions.close()


def check(policies: Policies, models: dict[bool, dict[str, Given]]) -> None:
    for name in NAMES:
        policy, operator_policy = policies.for_queue(name)
        chosen = expected(models[False], "queues", name)
        chosen_operator = expected(models[True], "queues", name)
        assert (name_of(policy), name_of(operator_policy)) == (chosen, chosen_operator)
        assert name_of(policies.for_exchange(name)) == expected(models[False], "exchanges", name)
        merged: dict[str, object] = {}
        for model, picked in ((models[False], chosen), (models[True], chosen_operator)):
            for key, value in model[picked].definition.items() if picked is not None else ():
                known = merged.get(key)
                both = isinstance(known, int) and isinstance(value, int)
                merged[key] = min(known, value) if both else value
        assert policies.effective(name) == merged
