"""Every ``gkest`` command line of the pages is one that the program takes: command, options, choices, number of arguments.

Nothing is run. Lines of shell blocks are parsed whole; of a command named in a sentence, only what stands there is checked.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from gkestimator.cli.group import gkest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.y*ml")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`(gkest\s[^`]+)`")
OUTPUT = re.compile(r"<!-- output: (gkest [^\n]*?) -->")
# A comment of an example file that shows how it is used.
COMMENTED = re.compile(r"^# +(gkest (?:.*\\\n# *)*.*)$", re.MULTILINE)


def shell_commands(script: str) -> list[list[str]]:
    """Return the words of every simple command of ``script`` that calls gkest, without redirections and comments."""
    commands = []
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("|&;<>"):
                words.append(word)
                continue
            if "gkest" in words:
                commands.append(words[words.index("gkest") + 1 :])
            words = []
    return commands


def named(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Return the command that ``words`` begin with, its context and the words after its name."""
    command: click.Command = gkest
    context = click.Context(gkest, info_name="gkest")
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        inner = command.get_command(context, name)
        assert inner is not None, f"{context.command_path} has no command {name}"
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    return command, context, rest


def check_line(words: list[str]) -> None:
    """Raise where gkest would refuse ``words`` before it looks at any file."""
    command, context, rest = named(words)
    values, left, _ = command.make_parser(context).parse_args(rest)
    assert not left, f"too many arguments: {left}"
    for parameter in command.params:
        value = values.get(parameter.name)
        missing = value is None or value == ()
        assert not (parameter.required and missing), f"{parameter.name} is missing"
        if isinstance(value, str | list) and not missing:
            parameter.type_cast_value(context, value)


def check_mention(text: str) -> None:
    """Raise where the command of ``text`` or an option named in it does not exist."""
    command, context, _ = named([word for word in text.split()[1:] if re.fullmatch(r"[a-z][\w-]*|-.*", word)])
    known = {
        name
        for parameter in command.get_params(context)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    options = re.findall(r"(?<!\S)(--[a-z][\w-]*|-[a-z])(?=[\s=,]|$)", text)
    unknown = [option for option in options if option not in known]
    assert not unknown, f"{context.command_path} has no {', '.join(unknown)}"


def wrong(page: Path) -> list[str]:
    """Return a line for every command of ``page`` that does not stand."""
    text = page.read_text(encoding="utf-8")
    scripts = [body for language, body in FENCE.findall(text) if language in ("sh", "bash", "console")]
    scripts += [re.sub(r"\\\n# *", " ", line) for line in (*OUTPUT.findall(text), *COMMENTED.findall(text))]
    problems = []
    for words in [words for script in scripts for words in shell_commands(script)]:
        try:
            check_line(words)
        except (click.UsageError, AssertionError) as e:
            problems.append(f"gkest {shlex.join(words)}: {e}")
    for mention in SPAN.findall(FENCE.sub("", text)):
        try:
            check_mention(mention)
        except AssertionError as e:
            problems.append(f"{' '.join(mention.split())}: {e}")
    return problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_known(page: Path) -> None:
    assert wrong(page) == []


def test_commands_that_do_not_stand_are_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\ngkest estimat m.onnx\ngkest estimate m.onnx --gpus T4  # a comment\n"
        "gkest simulate plan.json --table t.csv --copy never && gkest schedule\n```\n"
        "Then `gkest train --intereference pairs.csv`, or `gkest gpus NAME`.\n",
        encoding="utf-8",
    )
    problems = wrong(page)
    assert len(problems) == 5
    for problem, word in zip(
        problems, ("estimat", "--gpus", "never", "missing", "--intereference"), strict=True
    ):
        assert word in problem


def test_the_pages_hold_commands() -> None:
    readme = PAGES[0].read_text(encoding="utf-8")
    lines = [
        words
        for language, body in FENCE.findall(readme)
        if language == "sh"
        for words in shell_commands(body)
    ]
    assert len(lines) >= 8
