"""``examples/ci``: the workflow is read, and its commands are run in a repository with a changed model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "ci"
SCRIPT = FOLDER / "gkest-diff.sh"
NET = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 256] x, float[256, 256] w) => (float[N, 256] y) { h = MatMul (x, w)  y = Relu (h) }"""
HEAVIER = NET.replace("y = Relu (h)", "r = MatMul (h, w)  y = Softmax (r)")
GIT = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main")
needs_git = pytest.mark.skipif(
    shutil.which("git") is None or shutil.which("bash") is None, reason="git and bash are needed"
)


def workflow() -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load((FOLDER / "gkest-diff.yml").read_text(encoding="utf-8"))
    return document


def step(name: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = workflow()["jobs"]["diff"]["steps"]
    [chosen] = [step for step in steps if step.get("name") == name]
    return chosen


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The one of a step of the workflow, with ``gkest`` on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    gkest = folder / "gkest"
    gkest.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from gkestimator.cli import main; main()" "$@"\n'
    )
    gkest.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": os.devnull}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose second commit changes one model of two, adds one, and moves one."""
    root = tmp_path / "repository"
    names = ("same.onnx", "models/it's `odd`.onnx", "moved.onnx")
    for name in names:
        write(root / name, NET)
    git(root, "init", "-q")
    commit(root)
    git(root, "branch", "base")
    write(root / names[1], HEAVIER)
    write(root / "added.onnx", HEAVIER)
    git(root, "mv", "moved.onnx", "elsewhere.onnx")
    shutil.copytree(FOLDER, root / ".github")
    commit(root)
    return root


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *GIT, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "models")


def script(root: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_the_workflow_is_what_github_expects() -> None:
    document = workflow()
    events = document[True]  # YAML 1.1 reads the key `on` as a truth value
    assert events["pull_request"]["paths"] == ["**.onnx"]
    assert document["permissions"] == {"contents": "read", "pull-requests": "write"}
    steps = document["jobs"]["diff"]["steps"]
    assert steps[0]["with"]["fetch-depth"] == 0
    for step in steps:
        assert ("uses" in step) != ("run" in step)
        # What strangers choose reaches a shell through the environment alone, never as part of its text.
        assert "${{" not in step.get("run", "")


@needs_git
def test_every_command_is_one_that_bash_reads() -> None:
    texts = [step["run"] for step in workflow()["jobs"]["diff"]["steps"] if "run" in step]
    for text in (*texts, SCRIPT.read_text(encoding="utf-8")):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@needs_git
@pytest.mark.slow
def test_the_workflow_posts_what_changed_and_fails_over_a_limit(
    repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    posted = tmp_path / "posted"
    gh = tmp_path / "bin" / "gh"
    gh.write_text(f'#!/bin/sh\necho "$@" > {posted}\n')
    gh.chmod(0o755)
    told = {
        **environment,
        **workflow()["jobs"]["diff"]["env"],
        "BASE": git(repository, "rev-parse", "base").strip(),
        "NUMBER": "7",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    for name in ("Compare", "Post"):
        subprocess.run(["bash", "-e", "-c", step(name)["run"]], cwd=repository, env=told, check=True)
    comment = (repository / "comment.md").read_text(encoding="utf-8")
    assert (tmp_path / "summary").read_text(encoding="utf-8") == comment
    assert (repository / "posted.md").read_text(encoding="utf-8") == comment
    assert comment.count("### ") == 1 and comment.startswith(
        "### `models/it's odd.onnx`\n\n**Over the limit: "
    )
    assert "softmax" in comment and "A10G" in comment
    assert posted.read_text().split()[:3] == ["pr", "comment", "7"]
    output = (tmp_path / "output").read_text()
    assert output == "status=3\n"
    judged = subprocess.run(["bash", "-c", step("Judge")["run"]], env={**told, "STATUS": "3"}, check=False)
    assert judged.returncode == 3


@needs_git
@pytest.mark.slow
def test_the_script_within_limits_and_with_a_file_that_is_no_model(
    repository: Path, environment: dict[str, str]
) -> None:
    done = script(repository, environment, "base", "--gpu", "T4")
    assert done.returncode == 0 and done.stdout.count("### ") == 1
    (repository / "same.onnx").write_bytes(b"no model")
    done = script(repository, environment, "base", "--gpu", "T4", "--max-latency-pct", "0")
    assert done.returncode == 2
    assert "Over the limit" in done.stdout and "gkest: error: " in done.stdout
    assert script(repository, environment).returncode != 0
    git(repository, "checkout", "-q", "--force", "base")
    done = script(repository, environment, "base", "--gpu", "T4")
    assert (done.returncode, done.stdout) == (0, "No .onnx file that was there before has changed.\n")
