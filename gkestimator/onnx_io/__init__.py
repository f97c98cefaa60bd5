"""Reading ONNX.

A file becomes an operator graph with a concrete shape for every tensor. The only importer of onnx.
"""

from __future__ import annotations

from onnx import ModelProto

from gkestimator.onnx_io.model import Model, model_of, read_model, serialised

__all__ = ["Model", "ModelProto", "model_of", "read_model", "serialised"]
