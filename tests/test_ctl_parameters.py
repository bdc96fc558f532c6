"""Arguments and options of rabbitpy-ctl's commands: each has a name of its own."""

from __future__ import annotations

import warnings

import click
import pytest

from rabbitpy_broker.ctl import COMMANDS, click_command


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_takes_the_place_of_an_argument(name: str) -> None:
    command = click_command(name, COMMANDS[name])
    names = [parameter.name for parameter in command.params]
    assert len(names) == len(set(names))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        command.make_parser(click.Context(command))
