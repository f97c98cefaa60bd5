"""Help of every command: sections, examples; completion by click's own protocol; ``--quiet``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from gkestimator.cli import run
from gkestimator.cli.group import COMMANDS, OUTPUT, SECTIONS, DescribedCommand, gkest
from gkestimator.cli.profile import SUBCOMMANDS

ALL = (*((name,) for name in COMMANDS), *(("profile", name) for name in SUBCOMMANDS))
SCAN = Path(__file__).parents[1] / "data/exporters/scan.onnx"
Shown = Callable[..., str]


def command_of(names: tuple[str, ...]) -> DescribedCommand:
    command: click.Command | None = gkest
    for name in names:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert isinstance(command, DescribedCommand)
    return command


def parsed(example: str) -> click.Context:
    """Return what click makes of an example, before anything is run; raises where it is no command line of ours."""
    program, *words = shlex.split(example)
    assert program == "gkest"
    names = [words.pop(0)]
    if names == ["profile"]:
        names.append(words.pop(0))
    return command_of(tuple(names)).make_context(" ".join(names), words)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    def call(*arguments: str) -> str:
        assert run([*arguments, "--help"]) == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("names", ALL)
def test_two_examples_close_the_help_of_every_command(names: tuple[str, ...], shown: Shown) -> None:
    text = shown(*names)
    examples = text[text.index("\nExamples:\n") :].splitlines()[2:]
    assert [f"  {example}" for example in command_of(names).examples] == examples
    assert len(examples) == 2
    assert all(example.strip().startswith(f"gkest {' '.join(names)}") for example in examples)
    for example in examples:
        if names != ("profile",):
            parsed(example.strip())


@pytest.mark.parametrize("names", ALL)
def test_every_option_stands_once_under_a_title(names: tuple[str, ...], shown: Shown) -> None:
    lines = shown(*names).splitlines()
    lines = lines[next(i for i, line in enumerate(lines) if line[:1].isupper() and line.endswith(":")) :]
    options = [p for p in command_of(names).params if isinstance(p, click.Option) and not p.hidden]
    for option in options:
        flag = option.opts[-1]
        assert (
            sum(flag in line.split("  ")[1].replace(",", " ").split() for line in lines if line[:3] == "  -")
            == 1
        )
    titles = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert OUTPUT in titles or "Options" in titles
    assert len(titles) == len(set(titles))


def test_an_estimate_is_asked_for_in_four_sections(shown: Shown) -> None:
    text = shown("estimate")
    places = [text.index(f"\n{title}:\n") for title in ("Model", "What to ask", "How it runs", OUTPUT)]
    assert places == sorted(places)
    for flag, title in (
        ("--dim", 0),
        ("--plugin", 0),
        ("--gpu ", 1),
        ("--slo-ms", 1),
        ("--runtime", 2),
        ("-o,", 3),
    ):
        inside = text[places[title] : [*places, len(text)][title + 1]]
        assert f"\n  {flag}" in inside


def test_commands_stand_by_what_they_are_for(shown: Shown) -> None:
    text = shown()
    for title, commands in SECTIONS.items():
        part = text[text.index(f"\n{title}:\n") :]
        for name in commands:
            assert f"\n  {name} " in part[: part.index("\n\n")]


def completed(words: str, at: int) -> list[str]:
    """Return what the shell is offered, by click's protocol for bash."""
    result = subprocess.run(
        [sys.executable, "-c", "from gkestimator.cli import main; main()"],
        env=os.environ | {"_GKEST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "at", "offered"),
    [
        ("gkest ch", 1, ["plain,choose"]),
        ("gkest profile b", 2, ["plain,build"]),
        ("gkest estimate --qu", 2, ["plain,--quiet"]),
        ("gkest estimate --runtime onnx", 3, ["plain,onnxruntime"]),
        ("gkest estimate --gpu h10", 3, ["plain,H100-PCIE", "plain,H100-SXM"]),
        ("gkest estimate --gpu T4,amp", 3, ["plain,T4,ampere"]),
        ("gkest llm --dtype fp16,in", 3, ["plain,fp16,int4", "plain,fp16,int8"]),
        ("gkest estimate mod", 2, ["file,mod"]),
        ("gkest estimate --bundle b", 3, ["file,b"]),
        ("gkest init w", 2, ["plain,workload"]),
    ],
)
def test_the_shell_completes(words: str, at: int, offered: list[str]) -> None:
    assert set(completed(words, at)) >= set(offered)
    assert len(completed(words, at)) <= len(offered) + 3


def test_completion_of_a_command_imports_none() -> None:
    context = click.Context(gkest)
    before = set(sys.modules)
    names = [item.value for item in gkest.shell_complete(context, "")]
    assert names == list(COMMANDS)
    assert not {name for name in set(sys.modules) - before if name.startswith("gkestimator.cli.")}


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_leaves_the_table_alone(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", str(SCAN)]
    assert run(words) == 0
    loud = capsys.readouterr()
    assert loud.err
    assert run(["--quiet", *words] if place == "before" else [*words, "--quiet"]) == 0
    assert capsys.readouterr() == (loud.out, "")
    assert run([*words, "no-model.onnx", "--quiet"]) == 1
    assert "gkest: error: no-model.onnx" in capsys.readouterr().err


def test_quiet_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, plan, cluster = (str(tmp_path / name) for name in ("t.csv", "p.json", "c.yaml"))
    Path(cluster).write_text("gpus: [{type: T4, count: 1}]\n")
    assert run(["estimate", str(SCAN), "--gpu", "T4", "-o", table, "--quiet"]) == 0
    place = ["schedule", table, "--cluster", cluster, "--quick", "scan:5rps@99ms", "-o", plan]
    assert run([*place, "--quiet"]) == 0
    assert (
        run(["choose", str(SCAN), "--slo-ms", "9", "--rate", "1", "--gpu", "T4", "-o", table, "--quiet"]) == 0
    )
    assert capsys.readouterr() == ("", "")


LENGTHS = Path(__file__).parents[2] / "examples" / "lengths"
DECODER = Path(__file__).parents[1] / "data" / "decoders" / "llama-3.1-8b.json"
COMPARISON = """tables: [table.csv]
workloads: [workload.yaml]
clusters: [cluster.yaml]
policies: [gkest, exclusive]
"""
# What these need is measured on a GPU, or takes minutes: they are read, not run.
ONLY_READ = (
    "gkest train ",
    "gkest profile run sweep.json",
    *(f"gkest profile {name} " for name in ("build", "table", "pairs", "merge")),
    "gkest doctor --",
    "gkest serve ",  # serves until it is ended: tests/serving
)
FIRST = ("estimate", "schedule", "simulate")


def prepared(folder: Path) -> None:
    """Bring the folder of ``gkest demo --all`` to where the examples begin."""
    for name in ("yaml", "csv"):
        (folder / f"lengths.{name}").write_bytes((LENGTHS / f"bert-base.{name}").read_bytes())
    (folder / "network.toml").write_bytes((LENGTHS.parent / "network.toml").read_bytes())
    (folder / "comparison.yaml").write_text(COMPARISON)
    (folder / "models" / "config.json").write_bytes(DECODER.read_bytes())


@pytest.mark.slow
def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the folder that ``gkest demo --all`` writes; each does what its help says, with status 0."""
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--all", "."]) == 0
    prepared(tmp_path)
    ordered = sorted(ALL, key=lambda names: FIRST.index(names[0]) if names[0] in FIRST else len(FIRST))
    failed = {}
    for names in ordered:
        for example in command_of(names).examples:
            if example.startswith(ONLY_READ):
                continue
            status = run(shlex.split(example)[1:])
            said = capsys.readouterr()
            if status or "gkest: error" in said.err:
                failed[example] = said.err
        if names == ("estimate",):
            (tmp_path / "yesterday.csv").write_bytes((tmp_path / "table.csv").read_bytes())
        if names == ("simulate",):
            logged = "simulate plan.json --table table.csv --duration-s 5 --requests log.csv -o logged.json"
            assert run(shlex.split(logged)) == 0
            (tmp_path / "real.csv").write_bytes((tmp_path / "log.csv").read_bytes())
    assert not failed
