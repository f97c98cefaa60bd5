"""Versions of the CUDA libraries that this process has really loaded, from the libraries themselves."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from gkestimator.profiling.type_names import Texts

_MAPS = Path("/proc/self/maps")


def cuda_versions(maps: Path = _MAPS) -> Texts:
    """Return ``cuda`` (runtime), ``cudnn``, ``cublas``, ``cuda_driver`` (the CUDA that the driver serves) as
    far as loaded; what is not loaded, or does not tell, is left out."""
    try:
        paths = set(re.findall(r"(/\S+\.so[.0-9]*)$", maps.read_text(errors="replace"), re.MULTILINE))
    except OSError:
        return {}
    versions: Texts = {}
    for path in sorted(paths):
        name = Path(path).name
        for stem, key, read in _LIBRARIES:
            if name.startswith(stem + ".so"):
                version = _ask(path, read)
                if version:
                    versions[key] = version
    return versions


def _ask(path: str, function: str) -> str | None:
    try:
        library = ctypes.CDLL(path)
        if function == "cublasGetProperty":
            return _cublas(library)
        if function == "cudnnGetVersion":
            library.cudnnGetVersion.restype = ctypes.c_size_t
            number = int(library.cudnnGetVersion())
            # 8905 up to cuDNN 8, 90100 from 9 on
            scale = 10_000 if number >= 10_000 else 1000
            minor = number % scale // 100
            return f"{number // scale}.{minor}.{number % 100}"
        value = ctypes.c_int()
        if getattr(library, function)(ctypes.byref(value)):
            return None
        return f"{value.value // 1000}.{value.value % 1000 // 10}"
    except (OSError, AttributeError):
        return None


def _cublas(library: ctypes.CDLL) -> str | None:
    parts = []
    for which in range(3):  # major, minor, patch
        part = ctypes.c_int()
        if library.cublasGetProperty(which, ctypes.byref(part)):
            return None
        parts.append(str(part.value))
    return ".".join(parts)


_LIBRARIES = (
    ("libcudart", "cuda", "cudaRuntimeGetVersion"),
    ("libcudnn", "cudnn", "cudnnGetVersion"),
    ("libcublas", "cublas", "cublasGetProperty"),
    ("libcuda", "cuda_driver", "cuDriverGetVersion"),
)
