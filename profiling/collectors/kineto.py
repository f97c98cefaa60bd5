"""Kineto: torch's own profiler (CUPTI) inside the child, where nsys is missing."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.extras import install_extra
from gkestimator.profiling.captures import NVTX_DOMAIN, Capture
from gkestimator.profiling.collectors.base import Collector, CollectorError
from gkestimator.profiling.tools import complaint
from gkestimator.profiling.type_names import Names, TextByName

_BLOCK = 2**20
_OVERLAP = 512
_RANGE = re.compile(rb'"name"\s*:\s*"' + NVTX_DOMAIN.encode() + rb':([^"#]{1,100})#\d+"')
_CUDA_CALL = re.compile(rb'"cat"\s*:\s*"cuda_(?:runtime|driver)"')
_LAUNCH = re.compile(rb'"name"\s*:\s*"cu(?:da)?LaunchKernel')
_KERNEL = re.compile(rb'"cat"\s*:\s*"kernel"')
_MOST_BYTES = 2**34


class KinetoCollector(Collector):
    """Add ``--kineto FILE`` to the child, which then profiles itself; nothing else runs."""

    name = "kineto"
    summary = "torch.profiler: launches with their geometry, where nsys is missing"
    passes = ("timeline",)
    automatic = (("timeline", "gpu"),)
    file = "trace.json.gz"
    suffixes = (".json", ".json.gz")
    measures = ("grid", "block", "registers_per_thread", "smem_bytes", "stream")

    def unavailable(self) -> str | None:
        """Why not: torch is not installed, or does not know CUDA where a GPU is asked for."""
        version = self.version()
        if version is None:
            return f"kineto is part of torch, which is missing: {install_extra('profile')}, or install nsys"
        if self._device != "cpu" and version.endswith("+cpu"):
            return f"torch {version} is built without CUDA, so kineto sees no GPU: install torch for CUDA, or nsys"
        return None

    def version(self) -> str | None:
        """torch's, whose profiler it is."""
        from importlib import metadata

        try:
            return metadata.version("torch")
        except metadata.PackageNotFoundError:
            return None

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        """Return ``child`` with ``--kineto`` and the trace's name."""
        return [*child, "--kineto", str(folder / self.file)]

    def environment(self) -> TextByName:
        """Return a setting without which Kineto's messages would flood the log."""
        return {"KINETO_LOG_LEVEL": "99"}

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> Names:
        """See that the trace is whole and marks every one of ``entries``. Raises CollectorError."""
        trace = folder / self.file
        if not trace.is_file() or trace.stat().st_size == 0:
            said = complaint(log)
            why = f"; the child said: {said}" if said else ""
            raise CollectorError(f"kineto wrote no trace{why}")
        ranged, cuda, blind = kineto_ranges(trace)
        missing = [entry for entry in entries if entry not in ranged]
        if missing:
            raise CollectorError(
                f"kineto: the trace lacks the ranges of {len(missing)} of {len(entries)} entries "
                f"({', '.join(missing[:3])}, ...)"
            )
        if entries and self._device != "cpu" and not cuda:
            raise CollectorError(
                "kineto recorded no CUDA call: CUPTI did not start; is another profiler at work on this GPU?"
            )
        if entries and self._device != "cpu" and blind:
            raise CollectorError(
                "kineto recorded launches but no kernel: CUPTI may not look at this GPU (virtual, or no permission)"
            )
        return (trace.name,)

    @staticmethod
    def parse(path: Path) -> Capture:
        """Read a trace."""
        from gkestimator.profiling.parsers import parse_kineto

        return parse_kineto(path)


def kineto_ranges(trace: Path) -> tuple[frozenset[str], bool, bool]:
    """Return the entry ids marked in a trace, whether it holds CUDA calls, and whether it holds launches
    without a single kernel; read in blocks, without parsing. Raises CollectorError where the file is cut
    short or no gzip."""
    ids: set[str] = set()
    cuda = launches = kernels = False
    tail = b""
    seen = 0
    try:
        with gzip.open(trace, "rb") as file:
            while block := file.read(_BLOCK):
                seen += len(block)
                if seen > _MOST_BYTES:
                    raise CollectorError(f"{trace}: unpacks to more than {_MOST_BYTES:,} bytes")
                text = tail + block
                ids.update(match[1].decode(errors="replace") for match in _RANGE.finditer(text))
                cuda = cuda or _CUDA_CALL.search(text) is not None
                launches = launches or _LAUNCH.search(text) is not None
                kernels = kernels or _KERNEL.search(text) is not None
                tail = text[-_OVERLAP:]
    except (OSError, EOFError, zlib.error) as e:
        raise CollectorError(f"{trace}: not a whole trace: {e}") from e
    if not tail.rstrip().endswith(b"}"):
        raise CollectorError(f"{trace}: not a whole trace: its end is missing")
    return frozenset(ids), cuda, launches and not kernels
