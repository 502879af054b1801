"""What README.md says of the command is what the command does."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from presetbuild.cli import commands
from shim.cli import commands as shim_commands

README = (Path(__file__).parents[1] / "README.md").read_text()


def options(group: click.Group) -> set[str]:
    parameters = [parameter for command in group.commands.values() for parameter in command.params]
    names = [name for parameter in parameters if isinstance(parameter, click.Option) for name in parameter.opts]
    return {name for name in names if name.startswith("--")}


OPTIONS = sorted(options(commands))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_stands_in_the_readme(option: str) -> None:
    assert re.search(rf"`[^`]*{re.escape(option)}\b[^`]*`", README)


def test_the_readme_names_no_option_that_does_not_exist() -> None:
    tables = "\n".join(line for line in README.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"--[a-z][a-z0-9-]+", tables)) <= {*OPTIONS, *options(shim_commands)}


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_every_command_stands_in_the_readme(name: str) -> None:
    assert f"presetbuild {name}" in README or name == "build"


def test_the_exit_codes_of_the_readme_are_those_of_the_help() -> None:
    table = dict(re.findall(r"^\| (\d) \| ([a-z]+)", README, re.MULTILINE))
    text = commands.help or ""
    assert set(table) == {"0", "1", "2", "3", "4"}
    for code, word in table.items():
        assert re.search(rf"{code} (upstream )?{word if code != '0' else 'published'}", text), (code, word)


@pytest.mark.parametrize("name", sorted(shim_commands.commands))
def test_every_stage_stands_in_the_readme(name: str) -> None:
    assert f"| `shim {name}` |" in README
