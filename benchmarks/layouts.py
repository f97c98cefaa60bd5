"""Say what whole networks in two layouts tell of single kinds of kernels: ``python benchmarks/layouts.py``.

Needs GKEST_SHARED. First the factor by which each kind of kernel would have to be multiplied so that the development
networks of ``models/timm3090`` that hold no attention come out as measured (RTX 3090, AMP, torch 2.4, both layouts):
least squares of relative errors, held towards 1, in proportion to how well a kind is known. The constants of
``gkestimator/kernel_models/features/tensor_convolutions.py`` and of depthwise kernels, pooling and copies in
``analytical.py`` were chosen by it until the factors lay about 1. Then the time of the grouped convolutions of RegNets,
as what is left of the measured time, by the width of a group.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from scipy.optimize import lsq_linear

from benchmarks._regnets import REGNETS, described, stages
from benchmarks.accuracy.timm_cases import (
    DEVELOPMENT,
    GPU,
    LAYOUTS,
    TimmGraph,
    norms_of,
    timm_graphs,
    timm_rows,
)
from benchmarks.accuracy.workspace import shared_folder
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.kernels import Family, Kernel, KernelTable
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.features.tensor_convolutions import CHANNELS_LAST, tensor_convolution_us
from gkestimator.kernel_models.sustained import sustained_bytes_per_s

_KNOWN = 0.5  # weight of the pull to 1 for kinds that are measured alone
_STREAMING = 0.3
_SUPPOSED = 0.04
_UNEXPLAINED = ("cspresnet50", "vgg13_bn", "xception65")
"""Networks whose time the graph does not explain: a ``contiguous()`` in the author's code, and a kernel that cuDNN chose
in torch 2.1 and later alone (twice as long as in 1.13), and depthwise convolutions of more than 2^31 elements."""
_PIXELS = 224
_LEAST_SHARE = 0.002


@dataclass(frozen=True, slots=True)
class Network:
    """Hold one measured network: estimated milliseconds by kind of kernel."""

    name: str
    layout: str
    measured_ms: float
    kinds: dict[str, float]


def main() -> int:
    """Print both tables. Exit status 0, or 2 without the measurements."""
    shared = shared_folder()
    if shared is None:
        print("GKEST_SHARED does not name a folder with data/ and models/", file=sys.stderr)
        return 2
    _print_factors(list(_networks(shared)))
    _print_groups(shared)
    return 0


def _networks(shared: Path) -> Iterator[Network]:
    """Yield the development networks without attention, in both layouts."""
    rows = timm_rows(shared)
    for graph in timm_graphs(shared):
        name = graph.path.stem
        if graph.group != DEVELOPMENT or graph.attention != "none" or name in _UNEXPLAINED:
            continue
        for layout in LAYOUTS:
            row = rows.get((name, graph.img_size, layout))
            if row is not None:
                yield Network(name, layout, row.step_ms, _kinds(graph, layout, row.batch))


def _kinds(graph: TimmGraph, layout: str, batch: int) -> dict[str, float]:
    norms = norms_of(graph.path.stem)
    request = EstimateRequest([graph.path], [GPU], [batch], dtype="amp", layout=layout, amp_norms=norms)
    [(_, outcome)] = Engine(request).run()
    if isinstance(outcome, GkestimatorError):
        raise outcome
    [answer] = outcome
    program = answer.lowering.program
    times_ms = (answer.predictions.duration_us[program.kernel] * program.repeat / 1e3).tolist()
    kernels = [kernel for step in program.steps for kernel in step.kernels]
    total: dict[str, float] = defaultdict(float)
    for kernel, time_ms in zip(kernels, times_ms, strict=True):
        total[_kind(kernel)] += time_ms
    return total


def _kind(kernel: Kernel) -> str:
    """Return the kind of kernel that one factor is fitted for."""
    family = kernel.family
    conv = kernel.conv
    layout = "nhwc" if CHANNELS_LAST in kernel.variant else "nchw"
    if conv is None or family not in (Family.CONV, Family.DEPTHWISE, Family.POOLING):
        return kernel.name if family in (Family.COPY, Family.LAYERNORM) else str(family)
    if family is Family.POOLING:
        return f"{kernel.variant.split('.')[0]} {layout}"
    if family is Family.DEPTHWISE:
        return f"depthwise {min(conv.kernel_h, 7)}, stride {conv.stride_h} {layout}"
    if conv.groups > 1:
        return f"conv grouped {layout}"
    return f"conv {min(conv.kernel_h, 3)} {layout}"


def _pull(kind: str) -> float:
    if kind.startswith(("conv", "linear", "bmm", "attention", "layernorm")):
        return _KNOWN
    return _STREAMING if kind in ("elementwise", "batchnorm") else _SUPPOSED


def _print_factors(networks: list[Network]) -> None:
    measured = np.array([network.measured_ms for network in networks])
    names = {kind for network in networks for kind in network.kinds}
    times = {kind: np.array([n.kinds.get(kind, 0.0) for n in networks]) / measured for kind in names}
    kinds = sorted(names, key=lambda kind: -times[kind].mean())
    shares = np.stack([times[kind] for kind in kinds], axis=1)
    pull = np.array([_pull(kind) for kind in kinds])
    system = np.vstack([shares, np.diag(pull)])
    factors = lsq_linear(system, np.concatenate([np.ones(len(networks)), pull]), bounds=(0.2, 6.0)).x
    now, then = np.abs(shares.sum(axis=1) - 1), np.abs(shares @ factors - 1)
    print(
        f"{len(networks)} rows, mean error {100 * now.mean():.1f} %, with the factors {100 * then.mean():.1f} %"
    )
    print("| kind | share of the time | factor |\n|---|---:|---:|")
    for kind, share, factor in zip(kinds, shares.mean(axis=0), factors, strict=True):
        if share >= _LEAST_SHARE:
            print(f"| {kind} | {100 * share:.1f} % | {factor:.2f} |")


def _print_groups(shared: Path) -> None:
    rows = timm_rows(shared)
    gpu = gpu_catalogue().resolve(GPU)[0]
    print(
        "\n| network | channels a group | layout | grouped, measured ms | estimated ms |\n|---|---:|---|---:|---:|"
    )
    for name, net in REGNETS.items():
        for layout, variant in zip(LAYOUTS, ("conv", CHANNELS_LAST), strict=True):
            row = next(
                (
                    r
                    for r in rows.values()
                    if (r.model.split(".")[0], r.img_size, r.layout) == (name, _PIXELS, layout)
                ),
                None,
            )
            if row is None:
                continue
            parts = described(net, batch=row.batch, pixels=_PIXELS, variant=variant)
            dense, grouped = (
                tensor_convolution_us(KernelTable.from_kernels(p), gpu).sum() / 1e3
                for p in (parts.dense, parts.grouped)
            )
            others_ms = parts.other_bytes / sustained_bytes_per_s(gpu) * 1e3
            width = stages(net)[-1][2]
            print(f"| {name} | {width} | {layout} | {row.step_ms - dense - others_ms:.0f} | {grouped:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
