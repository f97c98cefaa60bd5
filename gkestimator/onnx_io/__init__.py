"""Reading ONNX.

A file becomes an operator graph with a concrete shape for every tensor. The only importer of onnx.
"""

from __future__ import annotations

from gkestimator.onnx_io.model import Model, read_model

__all__ = ["Model", "read_model"]
