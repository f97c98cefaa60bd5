"""From ONNX files to requirement rows: the library's front door."""

from gkestimator.estimation.api import EstimateResult, estimate, estimate_rows

__all__ = ["EstimateResult", "estimate", "estimate_rows"]
