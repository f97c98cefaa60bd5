"""Read a file into a ModelProto without weight values.

Regular files only, external data never opened, bounded memory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from gkestimator.core.errors import ModelError
from gkestimator.core.files import FileBytes, open_descriptor, reason
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.wire import strip_values

_PARSE_WHOLE_BELOW = 1 << 20
_ZIP = b"PK\x03\x04"


def read_proto(path: Path) -> onnx.ModelProto:
    """Return the model in ``path``.

    Raises ModelError or LimitError with a message that does not name the file yet.
    """
    return parse_model(_content(path))


def parse_model(content: bytes) -> onnx.ModelProto:
    """Return the model that ``content`` is the serialised form of. Raises ModelError."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, ValueError, RuntimeError) as e:
        raise ModelError("not an ONNX file (its bytes are no protobuf ModelProto)") from e
    if not model.HasField("graph"):
        raise ModelError("not an ONNX model: it holds no graph")
    return model


def _content(path: Path) -> bytes:
    """Return the file's bytes; those of a large file without weight values."""
    try:
        descriptor = open_descriptor(path)
    except OSError as e:
        raise ModelError(f"cannot be opened: {reason(e)}") from e
    except ValueError as e:
        raise ModelError(f"not a file name: {e}") from e
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError("not a regular file")
        size = status.st_size
        if size == 0:
            raise ModelError("empty file; an ONNX model was expected")
        limits.check("file_bytes", size)
        content = FileBytes(descriptor, size)
        if content[:4] == _ZIP:
            raise ModelError(
                "not an ONNX file: a zip archive, as torch.save writes; torch.onnx.export makes an ONNX file"
            )
        if size < _PARSE_WHOLE_BELOW:
            return content[:]
        return strip_values(content)
    except OSError as e:
        raise ModelError(f"cannot be read: {reason(e)}") from e
    finally:
        os.close(descriptor)
