"""A file to a ModelProto whose large values are replaced by a note of where in the file they are.

The file is walked once in protobuf's wire format (as :mod:`gkestimator.onnx_io.reading.wire` does for estimates), so a weight
costs one step and none of its pages is read.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import onnx

from gkestimator.core.errors import LimitError
from gkestimator.merging.editing.mapping import identity_of, mapped_file
from gkestimator.merging.editing.tensors import TensorSource
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.file import parse_model
from gkestimator.onnx_io.reading.wire import locate_values


def read_located(path: Path) -> tuple[onnx.ModelProto, TensorSource]:
    """The model in ``path`` and where its values are.

    A tensor whose values were cut has an ``external_data`` entry of the source's token: ``field,offset,length``.
    The token is drawn anew, so that no file can hold one. Raises ModelError or LimitError; messages of what is in
    the file do not name it yet.
    """
    path = Path(os.path.abspath(path))  # the working folder may change before the weights are read
    identity = identity_of(path)
    content = mapped_file(path, identity)
    if len(content) > limits.MAX_FILE_BYTES:
        raise LimitError(f"{path.name}: {len(content)} bytes; at most {limits.MAX_FILE_BYTES} are read")
    token = secrets.token_hex(16)
    model = parse_model(locate_values(memoryview(content), token))
    return model, TensorSource(path=path, identity=identity, token=token)
