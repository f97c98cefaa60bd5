"""Find the estimator's bundles: the option, the user's folder, the package, in that order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gkestimator.bundles.bundle import Bundle, load_bundle, stack_bundles


def bundle_folders() -> tuple[Path, ...]:
    """Return the folders with a ``card.json`` in ``$GKEST_HOME/models`` (default ``~/.config/gkest/models``),
    by name.
    """
    # Looked up at every call: tests and services set it while the process runs.
    home = os.environ.get("GKEST_HOME")
    try:
        if home:
            folder = Path(home) / "models"
        else:
            folder = Path.home() / ".config" / "gkest" / "models"
        return tuple(sorted(p for p in folder.iterdir() if (p / "card.json").is_file()))
    except (OSError, RuntimeError):  # no such folder, or no home directory at all
        return ()


def load_bundles(paths: Sequence[Path]) -> Bundle:
    """Return the bundles of ``paths``, then the user's, then the packaged one, as one estimator.

    The first that measured a GPU answers for it; elsewhere the first that covers a kernel and knows the chip.
    Raises BundleError for one that cannot be read.
    """
    return stack_bundles([*(load_bundle(p) for p in (*paths, *bundle_folders())), load_bundle()])
