"""Run operators between two super-operators that are alike once, on the concatenated value."""

from __future__ import annotations

from gkestimator.merging.lifting.lift import Lifted, lift

__all__ = ["Lifted", "lift"]
