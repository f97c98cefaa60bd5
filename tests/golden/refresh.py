"""Rewrite ``golden.csv`` after a change of estimates that is meant: ``python tests/golden/refresh.py``.

Prints what changed, largest change first, then the summary per GPU. ``--check`` changes nothing and exits 1 when
the file is not current.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from golden_models import golden_models
from golden_table import differences, golden_csv, golden_estimates, golden_path, read_golden, summary


def main() -> int:
    """The exit status."""
    path = golden_path()
    old = read_golden(path) if path.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GKEST_HOME"] = folder  # no host profile, bundle or GPU of this user
        new = golden_estimates(golden_models(Path(folder)))
    changed = differences(old, new)
    if old:
        print("\n".join([*changed, *summary(old, new)]))
    if "--check" in sys.argv[1:]:
        return int(bool(changed))
    path.write_bytes(golden_csv(new))
    print(f"{path.name}: {len(new)} rows, {len(changed)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
