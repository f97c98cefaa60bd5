"""Keep the public rows, and a cache of nested bundles and results keyed by what they depend on."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.evaluation.cases import KernelCases
from gkestimator.evaluation.splits import chips, thin
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.training.cards import Loaded, card
from gkestimator.training.plan import PLAN, ModelPlan
from gkestimator.training.recipe import FEWEST_CHIPS, FEWEST_ROWS, fit_bundle
from gkestimator.training.rows import TrainingRows
from gkestimator.training.train import measured_rows

ROOT = Path(__file__).parents[2]
FORMATS = ("neusight", "deepbench", "aiconfigurator", "vidur", "pipeweave", "llmservingsim")
TENSORRT_FORMATS = ("alibaba", "tensorrt")
"""Kernels of TensorRT, which have regressors of their own (``TENSORRT_PLANS``) and are judged by
``benchmarks/tensorrt_kernels.py``: no other regressor and no other experiment sees them."""
SEED = 0


class Workspace:
    """Rows of the folders ``formats``, GPUs and the cache. ``smoke`` > 0 keeps that many rows of each (GPU, source, family, precision): a
    trial run of the command in minutes, whose figures mean nothing."""

    def __init__(
        self, shared: Path, folder: Path, *, smoke: int = 0, formats: Sequence[str] = FORMATS
    ) -> None:
        self.shared, self.smoke, self.formats = shared, smoke, formats
        self.folder = folder / f"smoke{smoke}" if smoke else folder
        self.begun = time.monotonic()
        self._read: dict[str, KernelCases] = {}

    def tell(self, text: str) -> None:
        """One line of progress on stderr."""
        print(f"{time.monotonic() - self.begun:6.0f} s  {text}", file=sys.stderr, flush=True)

    @cached_property
    def _measured(self) -> tuple[Loaded, list[TrainingRows], dict[str, GpuSpec]]:
        return measured_rows([self.shared / "data" / name for name in self.formats])

    @cached_property
    def rows(self) -> TrainingRows:
        """Every per-operator row of the public data."""
        rows = TrainingRows.concatenate(self._measured[1])
        return rows.take(thin(rows, np.arange(len(rows)), most=self.smoke)) if self.smoke else rows

    @property
    def gpus(self) -> dict[str, GpuSpec]:
        """Specifications of the GPUs that the rows name."""
        return self._measured[2]

    @cached_property
    def data_key(self) -> str:
        """Changes when a measurement file does (by name and size)."""
        files = sorted(p for name in self.formats for p in (self.shared / "data" / name).glob("*.parquet"))
        listed = [f"{p.parent.name}/{p.name} {p.stat().st_size}" for p in files]
        return _digest([*listed, f"smoke {self.smoke}", f"seed {SEED}"])

    @cached_property
    def recipe_key(self) -> str:
        """Changes when a source file that training imports does (the plan apart), a GPU file or a library."""
        files = sources_of(
            "gkestimator.training.recipe", "gkestimator.training.fit", "gkestimator.evaluation.splits"
        )
        files -= {ROOT / "gkestimator/training/plan.py"}
        versions = [
            f"{p} {_version(p)}" for p in ("numpy", "scikit-learn", "xgboost", "xgboost-cpu", "lightgbm")
        ]
        return _digest([*_contents(files), *_contents((ROOT / "datasets/gpus").rglob("*.toml")), *versions])

    @cached_property
    def judge_key(self) -> str:
        """Changes when what predicts kernels or what they are compared with does."""
        return _digest(
            _contents(sources_of("gkestimator.evaluation.cases", "gkestimator.evaluation.baselines"))
        )

    @cached_property
    def product_key(self) -> str:
        """Changes when anything that answers an estimate does."""
        files = [*(ROOT / "gkestimator").rglob("*.py"), *(ROOT / "datasets").rglob("*.toml")]
        return _digest(_contents(files))

    def bundle_folder(
        self, name: str, index: np.ndarray, plans: Sequence[ModelPlan], *, geometry: bool = False
    ) -> Path:
        """Where :meth:`bundle` keeps the bundle of these rows and plans."""
        chosen = hashlib.sha256(np.ascontiguousarray(index, dtype=np.int64).tobytes()).hexdigest()
        key = _digest([chosen, self.data_key, self.recipe_key, f"geometry {geometry}", *map(repr, plans)])
        return self.folder / "bundles" / f"{name}-{key}"

    def bundle(
        self, name: str, index: np.ndarray, plans: Sequence[ModelPlan], *, geometry: bool = False
    ) -> Bundle:
        """The recipe's bundle from the rows ``index`` for ``plans``; trained unless the cache has it.

        Launch geometry moves no duration, so that only the bundle that is shipped has it.
        """
        folder = self.bundle_folder(name, index, plans, geometry=geometry)
        if not (folder / "stack.json").is_file():
            for old in folder.parent.glob(f"{name}-*"):
                if len(old.name) == len(folder.name):
                    shutil.rmtree(old, ignore_errors=True)
            self.tell(f"{name}: training {len(plans)} regressors on {len(index):,} rows")
            at = time.monotonic()
            fitted = fit_bundle(
                [self.rows.take(index)],
                self.gpus,
                seed=SEED,
                plans=tuple(plans),
                geometry=geometry,
                progress=lambda text, *_: self.tell(f"{name}: {text}"),
            )
            fitted.write(folder, card=card("nested", self._measured[0], fitted))
            self.tell(f"{name}: trained in {time.monotonic() - at:.0f} s")
        return load_bundle(folder)

    @property
    def recipe_now(self) -> str:
        """The whole recipe and its data: what a result must come from to describe the bundle trained now."""
        return _digest([self.data_key, self.recipe_key, *map(repr, PLAN)])

    def current(self, name: str, parts: Sequence[str]) -> bool:
        """Whether the result ``name`` is kept for a key of ``parts``; if so it is stamped as of the present recipe."""
        stamp = self._stamp(name)
        if not stamp.is_file() or stamp.read_text().split()[:1] != [_digest(parts)]:
            return False
        stamp.write_text(f"{_digest(parts)} {self.recipe_now}\n")
        self.tell(f"{name}: kept")
        return True

    def stale(self, names: Sequence[str]) -> list[str]:
        """Those results ``names`` that are missing or were made by another recipe or from other data."""
        return [
            n
            for n in names
            if not self._stamp(n).is_file() or self._stamp(n).read_text().split()[1:] != [self.recipe_now]
        ]

    def keep(self, name: str, parts: Sequence[str], value: KernelCases | list[dict[str, object]]) -> None:
        """Store a result and what it was made from."""
        stamp = self._stamp(name)
        stamp.unlink(missing_ok=True)
        if isinstance(value, KernelCases):
            value.write(stamp.with_name(f"{name}.npz"))
            self._read.pop(name, None)
        else:
            stamp.with_name(f"{name}.json").write_text(json.dumps(value, indent=0) + "\n", encoding="utf-8")
        stamp.write_text(f"{_digest(parts)} {self.recipe_now}\n")

    def _stamp(self, name: str) -> Path:
        folder = self.folder / "results"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.key"

    def cases(self, name: str) -> KernelCases | None:
        """A stored result of kernels, if there is one."""
        path = self.folder / "results" / f"{name}.npz"
        if name not in self._read and path.is_file():
            self._read[name] = KernelCases.read(path)
        return self._read.get(name)

    def joined(self, name: str, parts: Sequence[str]) -> KernelCases:
        """The stored results ``parts`` together, remembered under ``name``."""
        if name not in self._read:
            found = [cases for part in parts if (cases := self.cases(part)) is not None]
            self._read[name] = KernelCases.concatenate(found)
        return self._read[name]

    def listed(self, name: str) -> list[dict[str, object]] | None:
        """A stored result of other rows, if there is one."""
        path = self.folder / "results" / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def stored(self, prefix: str) -> list[str]:
        """Names of stored kernel results that begin with ``prefix``."""
        return sorted(p.stem for p in (self.folder / "results").glob(f"{prefix}*.npz"))


def plans_for(
    space: Workspace, train: np.ndarray, test: np.ndarray, *, unseen: bool
) -> tuple[ModelPlan, ...]:
    """The plans that the rows ``test`` would ask of a bundle trained on the rows ``train``.

    On a chip that was not trained on, plans of scope ``unseen`` answer; where the rows train none that covers a
    kernel, the others do. Leaving out plans that would not be asked changes no answer and saves their training.
    """
    left = space.rows.take(test).table
    known = space.rows.take(train)
    pairs = set(zip(left.family.astype(str), left.precision.astype(str), strict=True))
    wanted = "unseen" if unseen else "seen"
    chosen = []
    # TensorRT's plans learn from sources of their own, and answer nobody else's kernels.
    plans = [p for p in PLAN if not p.sources or set(p.sources) & set(known.source.tolist())]
    for pair in sorted(pairs):
        covering = [p for p in plans if pair in p.trains or pair in p.covers]
        apart = [
            p for p in covering if p.scope == wanted and (not unseen or _trainable(p, known, space.gpus))
        ]
        chosen += apart or covering
    return tuple(p for p in PLAN if p in chosen)


def _trainable(plan: ModelPlan, rows: TrainingRows, gpus: dict[str, GpuSpec]) -> bool:
    """Whether the recipe trains ``plan`` on ``rows``."""
    mine = np.flatnonzero(plan.mask(rows))
    return len(mine) >= FEWEST_ROWS and len(chips(rows.take(mine), gpus)) >= FEWEST_CHIPS


def sources_of(*modules: str) -> set[Path]:
    """The files of ``modules`` and of everything of gkestimator that they import, directly or not."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or not name.startswith("gkestimator."):
            continue
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue  # a name inside a module, not a module
        if spec is None or spec.origin is None:
            continue
        found[name] = Path(spec.origin)
        for node in ast.walk(ast.parse(found[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return set(found.values())


def shared_folder() -> Path | None:
    """The folder of public measurements and graphs that GKEST_SHARED names; None if it has none."""
    given = os.environ.get("GKEST_SHARED", "")
    return Path(given) if given and Path(given, "data").is_dir() and Path(given, "models").is_dir() else None


def _contents(files: object) -> list[str]:
    return [f"{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in sorted(files)]  # type: ignore[call-overload]


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
