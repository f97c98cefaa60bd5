"""The installer of Nsight: it refuses what it cannot do in one line, and leaves nothing behind. What it unpacks is tried
by CI itself and by the tests of the collectors and parsers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "install-nsight.sh"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not SCRIPT.is_file(), reason="needs a checkout on Linux"
)


def install(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], "unknown option --bogus"),
        (["--release", "sid"], "release sid: expected trixie or bookworm"),
        (["--release"], "--release needs trixie or bookworm"),
        (["one", "two"], "one PREFIX expected, found one and two"),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    done = install(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    done = install(str(tmp_path))
    assert done.returncode == 1 and "was not made by this script" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_no_mirror_that_answers_leaves_nothing(tmp_path: Path) -> None:
    done = install(str(tmp_path / "p"), GKEST_DEBIAN_MIRROR="http://127.0.0.1:9/debian")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().splitlines()[-1].startswith("install-nsight: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_complete_folder_is_kept_a_broken_one_is_not(tmp_path: Path) -> None:
    prefix = tmp_path / "p"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "complete").touch()
    tool = prefix / "bin" / "nsys"
    # Makes its output where it is told to, like nsys.
    tool.write_text('#!/bin/sh\nfor a; do case $a in --output=*) echo x > "${a#*=}";; esac; done\n')
    tool.chmod(0o755)
    done = install(str(prefix))
    assert (done.returncode, done.stdout.strip()) == (0, str(prefix))
    tool.write_text("#!/bin/sh\nexit 0\n")  # status 0, and no capture
    done = install(str(prefix), GKEST_DEBIAN_MIRROR="http://127.0.0.1:9/debian")
    assert done.returncode == 1 and "nsys made no capture" in done.stderr


def test_it_names_no_host() -> None:
    text = SCRIPT.read_text()
    assert "://" not in text.replace("(https?://[^ ]+/debian)", "")
