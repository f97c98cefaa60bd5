"""Start ``python -m benchmarks.accuracy`` and ``python benchmarks/accuracy``."""

import sys
from pathlib import Path

if not __package__:  # run as a folder: its own modules are relative to the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.accuracy.command import main

if __name__ == "__main__":
    sys.exit(main())
