"""The wheel holds every module and data file and nothing else; a bare install of it works and is small."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {
    "gkestimator": "gkestimator",
    "profiling": "gkestimator.profiling",
    "cli": "gkestimator.cli",
    "datasets": "gkestimator.datasets",
    "models": "gkestimator.models",
}
MAX_INSTALL_MB = 250
MAX_WHEEL_MB = 12
MAX_SDIST_MB = 25
TOO_HEAVY = (
    "torch",
    "sklearn",
    "pyarrow",
    "scipy",
    "xgboost",
    "lightgbm",
    "onnxruntime",
    "nvidia",
    "matplotlib",
)


def packages_of_the_tree() -> set[str]:
    found = set()
    for folder, package in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join([package, *parts]))
    return found


def test_declared_packages_equal_the_tree() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_of_the_tree()


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {
        str(file.parent.relative_to(ROOT))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if not (file.parent / "__init__.py").exists()
    }
    assert not bare


def expected_files() -> set[str]:
    """Modules and data of the tree under the names that they have once installed."""
    found = set()
    for folder, package in FOLDERS.items():
        base = package.replace(".", "/")
        for file in (ROOT / folder).rglob("*"):
            relative = file.relative_to(ROOT / folder)
            kernel_data = folder == "datasets" and relative.parts[0] not in ("gpus", "runtimes", "published")
            if not file.is_file() or "__pycache__" in file.parts or ".egg-info" in str(file):
                continue
            if file.suffix == ".py" or not kernel_data:
                found.add(f"{base}/{relative.as_posix()}")
    return found


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_tree(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert names == expected_files()
    assert "gkestimator/py.typed" in names


@pytest.mark.slow
def test_the_source_distribution_builds_the_same(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    sources = {str(f.relative_to(ROOT)) for f in (ROOT / "gkestimator").rglob("*.py")}
    assert sources <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "gkestimator/py.typed"} <= names
    assert {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CITATION.cff",
        "MANIFEST.in",
        ".ci/run",
    } <= names
    for folder in ("docs", "examples", "tests", "benchmarks"):
        files = {
            f.relative_to(ROOT).as_posix()
            for f in (ROOT / folder).rglob("*")
            if f.is_file() and "__pycache__" not in f.parts
        }
        assert files <= names, f"a part of {folder} alone: {sorted(files - names)[:5]}"
    assert not [name for name in names if name.endswith(".pyc")]
    assert sdist.stat().st_size <= MAX_SDIST_MB * 1e6
    data = {str(f.relative_to(ROOT)) for f in (ROOT / "datasets").rglob("*.toml")}
    assert data <= names


@pytest.mark.slow
def test_the_wheel_is_small_and_holds_the_licences_of_what_it_bundles(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    licences = {Path(n).name for n in names if ".dist-info/licenses/" in n}
    bundled = {f.name for f in (ROOT / "gkestimator/reporting/page").glob("*-*.txt")}
    assert len(bundled) == 4
    assert licences == {"LICENSE", "NOTICE", *bundled}
    size_mb = wheel.stat().st_size / 1e6
    print(f"wheel: {size_mb:.1f} MB, expected at most {MAX_WHEEL_MB} MB")
    assert size_mb <= MAX_WHEEL_MB


@pytest.mark.slow
def test_the_wheel_says_who_made_it(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert "\nAuthor: The gkestimator authors\n" in metadata


def test_the_notice_names_every_source_that_the_bundle_was_trained_on() -> None:
    """The page of licences is held to the bundle's card by test_release.py."""
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    page = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8")
    sources = re.findall(r"^\| `\w+` \|.*?([\w-]+/[\w-]+).* \| ([\w.-]+) \|$", page, flags=re.M)
    assert len(sources) >= 8
    for repository, licence in sources:
        assert re.search(rf"{repository}\b.*: {re.escape(licence)}\n", notice), (repository, licence)


@pytest.mark.slow
def test_twine_would_upload_both(distributions: Path) -> None:
    """`.ci/run` runs this with the extra `dev`, which has twine."""
    pytest.importorskip("twine")
    run(
        sys.executable, "-m", "twine", "check", "--strict", *distributions.iterdir(), cwd=distributions
    )  # fmt: skip


def run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_bare_install_works_and_is_small(distributions: Path, tmp_path: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    size_mb = sum(f.lstat().st_size for f in site.rglob("*") if f.is_file()) / 1e6
    print(f"bare install: {size_mb:.0f} MB in site-packages, expected at most {MAX_INSTALL_MB} MB")
    assert size_mb <= MAX_INSTALL_MB
    assert not [name for name in TOO_HEAVY if (site / name).exists()]
    version = PROJECT["project"]["version"]
    assert run(python.parent / "gkest", "--version", cwd=tmp_path) == f"gkest {version}\n"
    out = run(
        python.parent / "gkest",
        "demo",
        "--gpu",
        "V100",
        "--batch-size",
        "1,8",
        "--format",
        "csv",
        cwd=tmp_path,
    )
    assert len(out.splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_dependencies_and_theirs_have_wheels_for_newer_pythons(version: str, tmp_path: Path) -> None:
    """3.11 is what the bare install runs on where this Python is; the names are those of the whole tree."""
    report = tmp_path / "report.json"
    run(
        sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--only-binary=:all:",
        "--python-version", version, "--target", tmp_path / "none", "--report", report,
        *PROJECT["project"]["dependencies"], cwd=tmp_path,
    )  # fmt: skip
    chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    names = {item["metadata"]["name"].lower() for item in chosen}
    assert {d.split(">=")[0] for d in PROJECT["project"]["dependencies"]} < names
    assert all(item["download_info"]["url"].endswith(".whl") for item in chosen)
