"""Starts NVIDIA's MPS control daemon and stays: run under the profiler's guard, which ends both when its
owner is gone.

``python -I -S mps_keeper.py BINARY ANSWER``: ``BINARY -d`` returns once the daemon listens; ANSWER then holds
``{"status": ..., "output": ...}``. The standard library alone is imported, so that it is up at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile

_START_S = 30
_MOST_OUTPUT = 2000


def main(binary: str, answer: str) -> None:
    """Start the daemon, say how it went, and wait to be killed."""
    # Not a pipe: the daemon keeps what it was given open, and nobody would ever see its end.
    with tempfile.TemporaryFile() as output:
        try:
            status: int | None = subprocess.run(
                [binary, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_START_S,
                check=False,
            ).returncode
            output.seek(0)
            text = output.read(_MOST_OUTPUT).decode(errors="replace")
        except subprocess.TimeoutExpired:
            status = None
            text = f"not started within {_START_S} s"
        except OSError as e:
            status = None
            text = f"cannot be started: {e.strerror}"
    with open(answer + ".aside", "w", encoding="utf-8") as stream:
        json.dump({"status": status, "output": text}, stream)
    os.rename(answer + ".aside", answer)
    while status == 0:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
