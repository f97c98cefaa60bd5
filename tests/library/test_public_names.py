"""What programs may rely on: the names, and messages that speak of names instead of flags."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import gkestimator
from gkestimator.cli import run
from gkestimator.cli.group import COMMANDS, gkest
from gkestimator.core.options import at_command_line, spelled

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "library.md"
FUNCTIONS = {
    "estimate": [
        "models",
        "gpus",
        "batch_sizes",
        "errors",
        "slo_ms",
        "max_batch",
        "runtime",
        "dtype",
        "dims",
    ],
    "estimate_llm": [
        "model",
        "gpus",
        "input_tokens",
        "output_tokens",
        "batch_sizes",
        "dtypes",
        "engine",
        "like",
    ],
    "schedule": ["tables", "workload", "cluster", "policy", "objective", "creq", "options", "allow_unserved"],
    "export": ["source", "to", "output", "models", "only", "gpu", "batch_size", "image", "creq"],
    "simulate": ["plan", "tables", "arrivals", "duration_s", "seed"],
    "evaluate": ["truth", "models", "gpu", "runtime", "one_process"],
    "merge": ["models", "output", "gpu", "omega", "samples"],
    "gpus": ["name", "gpu_specs"],
    "runtimes": [],
}
TYPES = {"Evaluation", "Exported", "MergeResult", "PlacementPlan", "Requirements", "SimulationReport"}
MEMBERS = {"table", "kernels", "timeline", "memory", "errors", "messages", "plot", "report"}
FLAG = re.compile(r"(?<![\w-])--[a-z]|(?<!\S)-o\b")
# What only commands reach, or what writes the command lines of other programs.
NO_MESSAGES_OF_THE_LIBRARY = (
    "library/schemas",
    "estimation/changes_report.py",
    "estimation/doctor.py",
    "estimation/inspection.py",
    "exporting/ray_app/app.py",
    "exporting/triton.py",
    "hardware/host_profile.py",
    "interference/training.py",
    "jobs/ray_cluster.py",
    "merging/planned.py",
    "simulation/output.py",
    "simulation/saved_pages.py",
    "tables/__main__.py",
    "tables/layout.py",
)


def test_the_names_that_stay() -> None:
    assert set(gkestimator.__all__) == {*FUNCTIONS, *TYPES, "errors", "__version__"}
    assert set(gkestimator.__all__) <= set(dir(gkestimator))
    for name in FUNCTIONS:
        assert callable(getattr(gkestimator, name)), name
    for name in TYPES:
        assert inspect.isclass(getattr(gkestimator, name)), name
    assert vars(gkestimator.Requirements).keys() >= MEMBERS
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        _ = gkestimator.frobnicate


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parameters_that_stay(name: str) -> None:
    function = getattr(gkestimator, name)
    assert set(FUNCTIONS[name]) <= set(inspect.signature(function).parameters)
    assert FLAG.search(function.__doc__) is None, f"help({name}) speaks of the command line"


def test_the_page_names_them_all() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [
        name for name in (*FUNCTIONS, *MEMBERS) if f"`{name}" not in text and f".{name}" not in text
    ] == []


def test_names_hold_whatever_was_imported_before() -> None:
    """A room must not be called as a function is: importing it would put it in the function's place."""
    rooms = {init.parent.name for init in (ROOT / "gkestimator").glob("*/__init__.py")}
    assert rooms.isdisjoint(gkestimator.__all__)


def test_nothing_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, gkestimator; dir(gkestimator)\n"
        "print([n for n in sys.modules if n.startswith('gkestimator.library') or n in ('pandas', 'onnx', 'numpy')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def modules() -> Iterator[Path]:
    for file in sorted((ROOT / "gkestimator").rglob("*.py")):
        place = file.relative_to(ROOT / "gkestimator").as_posix()
        if not place.startswith(NO_MESSAGES_OF_THE_LIBRARY) and FLAG.search(file.read_text(encoding="utf-8")):
            yield file


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the texts of a module but for its docstrings, and for the spellings that messages are worded by."""
    apart: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            apart.add(id(node.value))
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) == "spelled":
                apart |= {id(inner) for argument in node.args for inner in ast.walk(argument)}
            apart |= {id(keyword.value) for keyword in node.keywords if keyword.arg == "flag"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            yield node


def flags_in(source: str) -> list[str]:
    return [node.value for node in texts(ast.parse(source)) if FLAG.search(node.value)]


def test_no_message_that_a_program_can_meet_speaks_of_a_flag() -> None:
    """Columns of the requirement table are explained for both, so that their own words are left out."""
    found = {}
    for file in modules():
        flags = flags_in(file.read_text(encoding="utf-8"))
        if flags and file.name not in ("requirement.py", "options.py", "registry.py"):
            found[str(file.relative_to(ROOT))] = flags
    assert found == {}


def test_a_flag_in_a_message_would_be_found() -> None:
    assert flags_in('raise UsageError(f"{x}: needs --slo-ms")') and flags_in('f"found {x}, expected -o {y}"')
    assert not flags_in('"""Say what --dim does."""\nraise UsageError(spelled("dims", "--dim"))')


def spellings() -> Iterator[tuple[str, str, str]]:
    """(file, program, command) of every spelling in the sources, up to the value that it shows."""
    for file in sorted((ROOT / "gkestimator").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if "spelled(" in text else "")):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "spelled":
                continue
            words = []
            for argument in node.args:
                part = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
                words.append(part.value if isinstance(part, ast.Constant) else "")
            if words and words[0]:
                program = re.split(r"\W", str(words[0]))[0]
                command = str(words[1]).split()[0] if len(words) > 1 else "--" + program.replace("_", "-")
                yield str(file.relative_to(ROOT)), program, command


def test_every_spelling_is_one_that_there_is() -> None:
    parameters = {"sm_share_pct", "keep_requests"}  # a column, and what only the command keeps
    for name in FUNCTIONS:
        parameters |= set(inspect.signature(getattr(gkestimator, name)).parameters)
    options = {"--sm-share"}
    context = click.Context(gkest)
    for name in COMMANDS:
        command = gkest.get_command(context, name)
        assert command is not None
        options |= {spelling for parameter in command.params for spelling in parameter.opts}
    found = list(spellings())
    assert len(found) > 20
    wrong = [line for line in found if line[1] not in parameters or line[2] not in options]
    assert wrong == []


def test_a_message_is_worded_for_who_reads_it(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dynamic = models / "net.onnx"
    assert run(["estimate", str(dynamic), "--gpu", "T4", "--max-batch"]) == 2
    assert "--max-batch needs a latency objective: add --slo-ms" in capsys.readouterr().err
    with pytest.raises(
        gkestimator.errors.UsageError, match="^max_batch needs a latency objective: add slo_ms$"
    ):
        gkestimator.estimate(dynamic, "T4", max_batch=True)
    assert not any("--" in message for message in gkestimator.estimate(dynamic, "T4").messages)
    with at_command_line():
        assert spelled("batch_sizes", "--batch-size") == "--batch-size"
        with at_command_line():
            pass
        assert spelled("slo_ms") == "--slo-ms"
    assert spelled("slo_ms") == "slo_ms"
