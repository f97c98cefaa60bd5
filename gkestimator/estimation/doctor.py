"""Say what this machine can do, read-only: every question that cannot be answered is answered by why not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.core.records import Names
from gkestimator.hardware.runtimes import RUNTIMES

Facts: TypeAlias = "list[tuple[str, str]]"
# A driver that hangs must not hang the report about it.
_TIMEOUT_S = 10
_LIBRARIES = {
    "Runtimes": tuple(dict.fromkeys(d for r in RUNTIMES.values() for d in r.distributions)),
    "Reading, tables": ("onnx", "numpy", "pandas", "pyarrow"),
    "Pictures": ("matplotlib",),
    "Training": ("scikit-learn", "scipy", "xgboost", "xgboost-cpu", "lightgbm"),
    "Profiling": ("ncu-report", "nvidia-ml-py", "ray"),
}
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def diagnose(profilers: Callable[[], Facts] | None = None) -> Iterator[tuple[str, Facts]]:
    """Yield sections of (name, what was found), in the order to print them.

    Never raises for what is absent. ``profilers``: what finds out about nsys and ncu
    (``gkestimator.profiling.diagnosis``; the estimator itself knows none).
    """
    yield "Program", [("gkestimator", _version("gkestimator")), ("Python", platform.python_version())]
    yield "GPU", _gpu()
    if profilers is not None:
        yield "Profilers", profilers()
    for section, names in _LIBRARIES.items():
        yield section, [(name, _version(name)) for name in names]
        if section == "Runtimes":
            yield "Execution providers of onnxruntime", _providers()
            yield "Builders of engines", _builders()
    yield "Estimator bundles", _bundles()
    yield "Host profile", _host()
    yield "Operators", _operators()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _providers() -> Facts:
    """Return which of the execution providers that runtimes are served under onnxruntime has here."""
    wanted = dict.fromkeys(name for traits in RUNTIMES.values() for name in traits.serving_providers)
    try:
        import onnxruntime

        available = onnxruntime.get_available_providers()
    except Exception as e:  # noqa: BLE001 - a library that is broken says so in errors of any class
        return [(name, f"unknown: {one_line(e)}") for name in wanted]
    # It names those that it was built with: whether the libraries of CUDA and TensorRT load shows in a session alone.
    return [(name, "in this build" if name in available else "not in this build") for name in wanted]


def _builders() -> Facts:
    builders = dict.fromkeys(t.server.engine_program for t in RUNTIMES.values() if t.server.engine_program)
    return [(name, shutil.which(name) or "not found on PATH") for name in builders]


def _run(command: Names) -> str:
    program = shutil.which(command[0])
    if program is None:
        return "not found on PATH"
    try:
        done = subprocess.run([program, *command[1:]], capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{program}: does not answer: {one_line(e)}"
    text = (done.stdout or done.stderr).decode(errors="replace").strip()
    if done.returncode == 0:
        return text
    return f"{program}: exit status {done.returncode}: {one_line(text)}"


def _gpu() -> Facts:
    text = _run(_SMI)
    return [
        (f"GPU {i}" if "," in line else "nvidia-smi", one_line(line))
        for i, line in enumerate(text.splitlines())
    ]


def _bundles() -> Facts:
    home = Path(os.environ.get("GKEST_HOME") or Path("~/.config/gkest").expanduser())
    folders = [
        ("$GKEST_HOME", home / "models"),
        ("package", Path(str(resources.files("gkestimator.models")))),
    ]
    facts: Facts = []
    for origin, folder in folders:
        try:
            names = sorted(p.parent.name for p in folder.glob("*/card.json"))
        except OSError as e:
            names = [f"cannot be read: {e.strerror or e}"]
        facts.append((origin, f"{', '.join(names) or 'none'} in {folder}"))
    return facts


def _host() -> Facts:
    from gkestimator.hardware.host_profile import default_host_file, load_host_file

    path = default_host_file()
    if path is None:
        return [("host.toml", "none; gkest evaluate --write-host writes one from measurements")]
    try:
        profile = load_host_file(path)
    except GkestimatorError as e:
        return [("host.toml", f"cannot be used: {e}")]
    figures = [f"{value:g} us a call ({name})" for name, value in profile.host_overhead_us.items()]
    figures += [f"{value / 1e9:.3g} GB/s ({name})" for name, value in profile.copy_bytes_per_s.items()]
    return [("host.toml", f"{', '.join(figures)} from {path}")]


def _operators() -> Facts:
    try:
        from gkestimator.lowering import covered_operators

        covered = covered_operators()
    except (GkestimatorError, ImportError) as e:
        return [("covered", f"unknown: {one_line(e)}")]
    by_domain: dict[str, list[str]] = {}
    for domain, op_type in covered:
        by_domain.setdefault(domain or "ai.onnx", []).append(op_type)
    facts: Facts = [("covered", f"{len(covered)} operator types")]
    for domain, names in sorted(by_domain.items()):
        facts += [(f"{domain} ({len(names)})", ", ".join(sorted(names)))]
    return facts
