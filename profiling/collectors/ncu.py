"""Nsight Compute: hardware counters of single launches, each replayed until all are counted.

Only entries that need them: a launch costs about half a second. Clocks are left alone (``--clock-control
none``; the defaults are base up to 2025 and boost from 2026.1 on) and so are the caches (``--cache-control
none``), because the timeline's repeats find them as the call before left them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.captures import NVTX_DOMAIN, Capture
from gkestimator.profiling.collectors.base import CollectorError, ToolCollector
from gkestimator.profiling.tools import NCU, complaint
from gkestimator.profiling.type_names import Names

# What is counted: duration, achieved occupancy, SM and DRAM throughput, DRAM bytes, L2 hits, and the
# launch's geometry, by which it is joined with the timeline's.
COUNTERS = (
    "gpu__time_duration.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sector_hit_rate.pct",
    "launch__grid_size",
    "launch__block_size",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__shared_mem_per_block_driver",
    "launch__waves_per_multiprocessor",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__occupancy_limit_blocks",
)
_STEM = "counters"
_REMEDIES = (
    (
        r"ERR_NVGPUCTRPERM",
        "no permission to read the GPU's counters: run as root (in a container with --cap-add=SYS_ADMIN), or have the "
        "administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0; or go on with --no-counters",
    ),
    (
        r"target vGPU device",
        "the hypervisor does not let this virtual GPU read counters: have profiling enabled for it, or go on with "
        "--no-counters",
    ),
    (
        r"[Mm]ulti-?[Pp]rocess [Ss]erver|\bMPS\b",
        "ncu does not work while MPS runs: end it (echo quit | nvidia-cuda-mps-control), or go on with --no-counters",
    ),
    (
        r"driver resource was unavailable",
        "another tool holds the GPU's counters (DCGM: dcgmi profile --pause; a second ncu), or permission is lacking",
    ),
    (
        r"failed to connect to the CUDA driver",
        "ncu finds no CUDA driver: it needs an NVIDIA GPU",
    ),
    (
        r"(open|create)[^\n]{0,20} lock file",
        "another user's nsight-compute-lock is in the way: set TMPDIR to a folder of your own",
    ),
    (
        r"Unsupported GPU|not supported on this (?:device|GPU)|does not support prof",
        "this ncu does not know this GPU: install a newer Nsight Compute",
    ),
    (
        r"[Ff]ailed to find metric|[Uu]nknown metric|metrics? [^\n]{0,80}(?:not|could not be) found",
        "this ncu does not know a counter that is asked for: install a newer Nsight Compute",
    ),
    (
        r"No kernels were profiled",
        "no launch fell into an NVTX range of an entry",
    ),
)


class NcuCollector(ToolCollector):
    """Run ``ncu`` around the child, limited to the NVTX ranges of the entries."""

    name = "ncu"
    summary = "Nsight Compute: hardware counters of every entry, timed by what auto takes"
    passes = ("counters",)
    automatic = (("counters", "cpu"), ("counters", "gpu"))
    file = f"{_STEM}.ncu-rep"
    suffixes = (".ncu-rep", ".csv")
    measures = ("counters",)
    tool = NCU

    def unavailable(self) -> str | None:
        """Return why counters cannot be read here, in one line; None where nothing speaks against it. Whether
        the driver permits it, only :func:`gkestimator.profiling.collectors.probe` finds out."""
        if self._device == "cpu":
            return "ncu reads the counters of GPUs; on the CPU there are none"
        reason = super().unavailable()
        if reason is not None:
            return reason
        server = mps_process()
        if server is None:
            return None
        return f"process {server}: {_REMEDIES[2][1]}"

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        """Return ``ncu`` around ``child``; the report becomes ``counters.ncu-rep`` in ``folder``. Launches
        outside the ranges of the child's entries (warm-up, preparation) are not counted. Raises
        CollectorError, and UsageError where the child's plan cannot be read."""
        command = [str(self._executable()), "--target-processes", "all", "--nvtx"]
        for text in _range_texts(child):
            # With the slash a push/pop range is meant; without, a start/end range.
            command += ["--nvtx-include", f"{NVTX_DOMAIN}@{text}/"]
        return [
            *command,
            *("--clock-control", "none", "--cache-control", "none", "--replay-mode", "kernel"),
            *("--metrics", ",".join(COUNTERS), "--force-overwrite", "--export", str(folder / _STEM)),
            *child,
        ]

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> Names:
        """See that launches of the entries were counted. An entry that launches no kernel (a view, a copy)
        has none, so single ones may be absent. Raises CollectorError with the remedy where the reason is a
        known one."""
        report = folder / self.file
        label = self._label()
        said = ncu_remedy(log) or complaint(log)
        if not report.is_file() or report.stat().st_size == 0:
            raise CollectorError(f"{label} made no report: {said or 'it said nothing'}")
        try:
            capture = self.capture(folder)
        except GkestimatorError as e:
            raise CollectorError(f"{label}: its report cannot be read: {e}") from e
        ranges = () if capture is None else capture.ranges
        missing = set(entries) - {r.entry_id for r in ranges}
        counted = len(entries) - len(missing)
        if entries and not counted:
            reason = said or "no launch fell into an NVTX range of an entry"
            raise CollectorError(f"{label} counted nothing: {reason}")
        if missing and "==ERROR==" in log:
            raise CollectorError(f"{label} counted {counted} of {len(entries)} entries, then: {said}")
        return (report.name,)

    @staticmethod
    def parse(path: Path) -> Capture:
        """Read a report, or the raw page that ncu prints of one as CSV."""
        from gkestimator.profiling.parsers import parse_ncu

        return parse_ncu(path)


def ncu_remedy(log: str) -> str | None:
    """Return what to do about a known complaint in ncu's output; None where there is none."""
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, log)), None)


def mps_process() -> int | None:
    """Return the process id of a CUDA MPS control daemon or server on this machine, None without one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The kernel keeps 15 characters of a name.
            if (folder / "comm").read_text().strip().startswith("nvidia-cuda-mps"[:15]):
                return int(folder.name)
        except (OSError, UnicodeDecodeError):
            continue
    return None


def _range_texts(child: Sequence[str]) -> list[str]:
    """Return the texts of the ranges that the child will push: it names its entries' plan, and in this pass
    runs each once. Exact names, because the characters of ncu's regular expressions are also its filter's
    own."""
    from gkestimator.profiling.plan import read_plan

    arguments = list(child)
    if "--entries" in arguments[:-1]:
        plan = read_plan(Path(arguments[arguments.index("--entries") + 1]))
        return [f"{entry.id}#1" for entry in plan.entries]
    if "--ranges" in arguments[:-1]:  # the child of a probe
        return [f"{name}#1" for name in arguments[arguments.index("--ranges") + 1].split(",")]
    raise CollectorError(f"ncu: the child's command names no --entries: {' '.join(arguments)[:200]}")
