"""Run the check of a merged file in a process of its own, which has a time and a memory limit.

What ONNX Runtime does with a stranger's model cannot be told ahead: a loop of nine million trips is a file of a
kilobyte. The process is a child under the guard of :mod:`gkestimator.jobs.guard`, so that it never outlives its owner.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import ModelError, UnboundDimensionError
from gkestimator.core.limits import allowed, exceeded, seconds_for
from gkestimator.jobs.children import end_guarded, last_words, log_end, start_guarded
from gkestimator.merging.checking import NotComparedError, OutputCheck, OutputDifference, check_outputs
from gkestimator.merging.sources import MergeSource

_SAMPLES_PER_LIMIT = 4
_COPIES = 4  # of the models, which a session holds: the file, its weights, and those that it packs anew


def check_apart(
    merged: Path, sources: Sequence[MergeSource], samples: int, folder: Path
) -> OutputCheck | str:
    """Return what :func:`check_outputs` says of ``merged``; ``folder`` is for the child's files.

    A text says why nothing could be compared, which is no fault of the merge. Raises ModelError where the merged file
    alone does not run.
    """
    size = merged.stat().st_size + sum(source.path.stat().st_size for source in sources)
    seconds = seconds_for("check_seconds", size) * max(1.0, samples / _SAMPLES_PER_LIMIT)
    request = {
        "merged": str(merged.absolute()),
        "sources": [_as_values(source) for source in sources],
        "samples": samples,
        "memory": allowed("check_bytes") + _COPIES * size,
    }
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    log = folder / "log.txt"
    with log.open("wb") as output:
        command = [sys.executable, "-P", "-m", "gkestimator.merging.apart", str(folder.absolute())]
        process = start_guarded(command, output, os.environ)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"running the models: {exceeded('check_seconds', f'more than {seconds:,.0f}')}"
        finally:
            end_guarded(process)
    try:
        answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it was killed, or a library ended it
        words = last_words(log_end(log, 4096))
        return f"ONNX Runtime ended while it ran the models (status {process.returncode}): {words}"
    if "fault" in answer:
        raise ModelError(answer["fault"])
    if "reason" in answer:
        return str(answer["reason"])
    outputs = tuple(OutputDifference(**output) for output in answer.pop("outputs"))
    return OutputCheck(**answer, outputs=outputs)


def _as_values(source: MergeSource) -> dict[str, Any]:
    return {
        "name": source.name,
        "path": str(source.path.absolute()),
        "batch_size": source.batch_size,
        "dims": dict(source.dims),
    }


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    _limit_memory(request["memory"])
    sources = request["sources"]
    try:
        check = check_outputs(
            Path(request["merged"]),
            {source["name"]: Path(source["path"]) for source in sources},
            samples=request["samples"],
            batch_sizes={source["name"]: source["batch_size"] for source in sources},
            dims={source["name"]: source["dims"] for source in sources},
        )
    except (NotComparedError, UnboundDimensionError) as e:
        return {"reason": str(e)}
    except MemoryError:
        return {"reason": _of_memory(request)}
    except ModelError as e:
        if "alloc" in str(e):  # std::bad_alloc, or the words of an allocator: it is the limit that speaks
            return {"reason": _of_memory(request)}
        return {"fault": str(e)}
    if check is None:
        return {"reason": "ONNX Runtime is not installed"}
    return dataclasses.asdict(check)


def _of_memory(request: dict[str, Any]) -> str:
    amount = f"more than {request['memory']:,}"
    return f"running the models: {exceeded('check_bytes', amount)}"


def _limit_memory(most: int) -> None:
    """Let this process take ``most`` bytes; mapped files and address space that is only reserved do not count."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, AttributeError, OSError, ValueError):
        pass  # the system has no such limit: the time limit remains


def main() -> None:
    """Check as the file ``request.json`` of the folder that is named asks, and write ``answer.json``."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    answer = json.dumps(_answer(request))
    (folder / "answer.json").write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main()
