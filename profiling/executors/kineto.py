"""torch.profiler around the whole child: CUPTI's timeline without Nsight Systems, for any runtime in the process."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from gkestimator.core.errors import OutputError, UsageError, one_line
from gkestimator.profiling.captures import NVTX_DOMAIN

_BLOCK = 2**20
_LEVEL = 6
"""Asked for a name in .gz, torch zips line by line at the highest level: on one core 11 MB a second (November 2026),
and a launch takes 2.5 KB. In blocks and at zlib's usual level it was 120, for a tenth more bytes."""


class KinetoTrace:
    """Record from :meth:`start` to :meth:`stop`, which writes the trace wholly or not at all."""

    def __init__(self, path: Path, *, cuda: bool) -> None:
        """Raise UsageError without torch, or where torch's profiler cannot see the GPU."""
        os.environ.setdefault(
            "KINETO_LOG_LEVEL", "99"
        )  # read when torch is loaded; else kineto prints at every start
        try:
            import torch
            from torch.profiler import ProfilerActivity, profile
        except ImportError as e:
            raise UsageError("--kineto needs the package torch, which is not installed") from e
        activities = [ProfilerActivity.CPU]
        if cuda:
            if not torch.cuda.is_available():
                raise UsageError(
                    f"--kineto: torch {torch.__version__} sees no GPU, expected a CUDA build of it"
                )
            activities.append(ProfilerActivity.CUDA)
        if path.name.endswith(".gz") is False and path.suffix != ".json":
            raise UsageError(f"--kineto {path}: expected a name ending in .json or .json.gz")
        self._path = path
        self._cuda = cuda
        self._torch: Any = torch
        self._make: Callable[[], Any] = lambda: profile(activities=activities)
        self._profile: Any = None

    def start(self) -> None:
        """Begin to record. Raises UsageError where the GPU takes no work."""
        if self._cuda:
            self._begin_cupti()
        self._profile = self._make()
        self._profile.start()

    def _begin_cupti(self) -> None:
        """Make a session that nobody reads: with it come CUDA's context and CUPTI, which the first entry
        would wait for."""
        try:
            with self._make():
                self._torch.ones(1, device="cuda").add_(1.0)
                self._torch.cuda.synchronize()
        except RuntimeError as e:
            raise UsageError(f"--kineto: the GPU takes no work: {one_line(e)}") from e

    def stop(self) -> None:
        """End, and write the trace. Raises OutputError."""
        written = self._path.with_name(f".aside-{os.getpid()}-trace.json")  # plain by its name's ending
        zipped = written.with_name(written.name + ".gz")
        try:
            self._profile.stop()
            self._profile.export_chrome_trace(str(written))
            if self._path.suffix == ".gz":
                with open(written, "rb") as source, gzip.open(zipped, "wb", compresslevel=_LEVEL) as sink:
                    shutil.copyfileobj(source, sink, _BLOCK)
                os.replace(zipped, self._path)
            else:
                os.replace(written, self._path)
        except (OSError, RuntimeError) as e:
            raise OutputError(f"{self._path}: the trace cannot be written: {e}") from e
        finally:
            for left in (written, zipped):
                left.unlink(missing_ok=True)

    def range(self, text: str) -> AbstractContextManager[None]:
        """Put a user annotation ``gkestimator:<text>`` around the block."""
        return self._range(f"{NVTX_DOMAIN}:{text}")

    @contextmanager
    def _range(self, text: str) -> Iterator[None]:
        with self._torch.profiler.record_function(text):
            yield
