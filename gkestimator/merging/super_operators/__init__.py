"""Write operators that share a block of weights as nodes that multiply by it once."""

from __future__ import annotations

from gkestimator.merging.super_operators.emission import can_emit, emit, share_helpers
from gkestimator.merging.super_operators.form import Emitted

__all__ = ["Emitted", "can_emit", "emit", "share_helpers"]
