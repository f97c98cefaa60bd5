"""Read Triton's published tables of fixed batches as times of one inference by runtime, and count whose order is right.

A row is comparable with an estimate where the table splits it: ``compute_infer`` and ``compute_output`` together, because
TorchScript returns before the GPU is done and waits while its outputs are read. ``compute_input`` is not part of it: Triton
moves the inputs in the same way for every runtime. Rows that are not split hold a client's whole latency, its way to
the server and back included: their order says something, their size does not.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

RUNTIMES = {
    "torchscript": "torch",
    "onnxruntime_cuda": "onnxruntime",
    "onnxruntime_tensorrt": "onnxruntime_tensorrt",
    "tensorrt": "tensorrt",
}
"""The runtime that estimates each of Triton's backends; TensorFlow has none."""
APART = 1.1
"""How far apart, as a ratio, two measurements must be to have an order."""
_FRAMES_PER_S = 100  # Jasper reads a spectrum every 10 ms


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Hold one row: milliseconds of one batch. ``client``: of a whole request instead; ``frames`` of sound, 0 without.

    ``output_ms`` is the part that passed after the framework had returned, 0 for a client's latency.
    """

    gpu: str
    model: str
    runtime: str
    precision: str
    batch: int
    frames: int
    ms: float
    output_ms: float
    client: bool
    container: str

    @property
    def half(self) -> str:
        """Say whether figures may be chosen by this model (``chosen by``) or not (``reported``)."""
        family = self.model.removesuffix("_electricity").removesuffix("_traffic")
        number = int(hashlib.sha256(family.encode()).hexdigest(), 16)
        return "chosen by" if number % 2 == 0 else "reported"

    @property
    def case(self) -> tuple[str, str, str, int, int]:
        """Return what rows must share to be compared: all but the runtime."""
        return (self.gpu, self.model, self.precision, self.batch, self.frames)


def measured_rows(table: pd.DataFrame) -> Iterator[Measured]:
    """Yield the rows of ``triton_offline`` that have a latency and a runtime; the data set is part of a model's name."""
    for row in table.itertuples():
        runtime = RUNTIMES.get(str(row.backend))
        split = row.compute_infer_ms + row.compute_output_ms
        client = pd.isna(split)
        ms = split
        if client:
            ms = row.avg_ms
        if runtime is None or pd.isna(ms):
            continue
        model = str(row.model)
        if not pd.isna(row.dataset):
            model = f"{model}_{row.dataset}"
        yield Measured(
            gpu=str(row.gpu),
            model=model,
            runtime=runtime,
            precision=str(row.precision),
            batch=int(row.batch),
            frames=0 if pd.isna(row.audio_s) else round(_FRAMES_PER_S * row.audio_s) + 1,
            ms=float(ms),
            output_ms=0.0 if client else float(row.compute_output_ms),
            client=bool(client),
            container="" if pd.isna(row.container) else str(row.container),
        )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Hold a measured row beside the milliseconds that were estimated."""

    row: Measured
    estimate_ms: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Hold two runtimes of one case, the measured faster one first."""

    faster: Judged
    slower: Judged

    @property
    def right(self) -> bool:
        """Say whether the estimates have the same one first; equal estimates do not."""
        return self.faster.estimate_ms < self.slower.estimate_ms

    @property
    def runtimes(self) -> str:
        """Name both runtimes, in the order of the alphabet."""
        return " / ".join(sorted((self.faster.row.runtime, self.slower.row.runtime)))


def pairs_apart(rows: Iterable[Judged], apart: float = APART) -> list[Pair]:
    """Return all pairs of runtimes of the same case whose measurements differ by more than the ratio ``apart``."""
    cases: dict[tuple[object, ...], list[Judged]] = {}
    for judged in rows:
        cases.setdefault(judged.row.case, []).append(judged)
    found = []
    for together in cases.values():
        for two in itertools.combinations(together, 2):
            faster, slower = sorted(two, key=lambda judged: judged.row.ms)
            if slower.row.ms > apart * faster.row.ms:
                found.append(Pair(faster=faster, slower=slower))
    return found


def share_right(pairs: Sequence[Pair]) -> float:
    """Return the percentage of ``pairs`` whose order the estimates have right, NaN without pairs."""
    if not pairs:
        return float("nan")
    return 100 * sum(pair.right for pair in pairs) / len(pairs)
