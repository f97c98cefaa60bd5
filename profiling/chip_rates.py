"""What a GPU does not tell of itself: results per clock and SM, by compute capability.

Vector rates: CUDA C++ Programming Guide, table "Throughput of Native Arithmetic Instructions". Tensor rates: NVIDIA's
white papers (Volta V1.1, Turing, A100 V1.0, GA102 V2, H100 V1.04, Ada V2, RTX Blackwell V1.1) and data sheets (HGX
B200), dense, with 32-bit accumulation, which GeForce cards of compute capability 7.5 to 12 do at half rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gkestimator.core.records import frozen

_GUIDE = "CUDA C++ Programming Guide, table 'Throughput of Native Arithmetic Instructions', column"
_FLOAT_TENSOR = ("tf32", "fp16", "bf16", "fp8")


@frozen
class ChipRates:
    """``cores``: fp32 results per clock and SM. ``vector``: rate of other types as a multiple of fp32's. ``tensor``:
    dense operations (a multiply-add counted as two) of the tensor cores per clock and SM. ``source``: for both."""

    cores: int
    vector: Mapping[str, float]
    tensor: Mapping[str, int] = field(default_factory=dict)
    source: str


def _rates(
    label: str, cores: int, vector: Mapping[str, float], tensor: Mapping[str, int], paper: str
) -> ChipRates:
    source = f"{_GUIDE} {label}" + (f"; tensor cores: {paper}" if paper else "")
    return ChipRates(cores=cores, vector=vector, tensor=tensor, source=source)


_RATES = {
    (3, 5): _rates("3.5", 192, {"fp64": 1 / 3}, {}, ""),
    (3, 7): _rates("3.7", 192, {"fp64": 1 / 3}, {}, ""),
    (5, 0): _rates("5.0", 128, {"fp64": 1 / 32}, {}, ""),
    (5, 2): _rates("5.2", 128, {"fp64": 1 / 32}, {}, ""),
    (6, 0): _rates("6.0", 64, {"fp64": 1 / 2, "fp16": 2.0}, {}, ""),
    (6, 1): _rates("6.1", 128, {"fp64": 1 / 32, "int8": 4.0}, {}, ""),
    (7, 0): _rates("7.0", 64, {"fp64": 1 / 2, "fp16": 2.0, "int8": 4.0}, {"fp16": 1024}, "Volta white paper"),
    (7, 5): _rates(
        "7.5", 64, {"fp64": 1 / 32, "fp16": 2.0}, {"fp16": 1024, "int8": 2048}, "Turing white paper"
    ),
    (8, 0): _rates(
        "8.0",
        64,
        {"fp64": 1 / 2, "fp16": 4.0, "bf16": 2.0},
        {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
        "A100 white paper",
    ),
    (8, 6): _rates(
        "8.6",
        128,
        {"fp64": 1 / 64, "fp16": 1.0, "bf16": 1.0},
        {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
        "GA102 white paper",
    ),
    (8, 9): _rates(
        "8.9",
        128,
        {"fp64": 1 / 64, "fp16": 1.0, "bf16": 1.0},
        {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
        "Ada white paper",
    ),
    (9, 0): _rates(
        "9.0",
        128,
        {"fp64": 1 / 2, "fp16": 2.0, "bf16": 2.0},
        {"fp64": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
        "H100 white paper",
    ),
    (10, 0): _rates(
        "10.0",
        128,
        {"fp64": 1 / 2, "fp16": 2.0, "bf16": 2.0},
        {"fp64": 128, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 16384},
        "HGX B200 data sheet",
    ),
    (12, 0): _rates(
        "12.0",
        128,
        {"fp64": 1 / 64, "fp16": 1.0, "bf16": 1.0},
        {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
        "RTX Blackwell white paper",
    ),
}
_ARCHITECTURES = {
    3: "Kepler",
    5: "Maxwell",
    6: "Pascal",
    7: "Volta",
    8: "Ampere",
    9: "Hopper",
    10: "Blackwell",
    12: "Blackwell",
}


def chip_rates(capability: tuple[int, int], name: str) -> ChipRates | None:
    """Rates of a chip of compute capability (major, minor) sold as ``name``; None where the table does not know it."""
    found = _RATES.get(capability)
    if found is None or not found.tensor or "geforce" not in name.lower():
        return found
    halved = {p: rate // 2 if p in _FLOAT_TENSOR else rate for p, rate in found.tensor.items()}
    return ChipRates(
        cores=found.cores,
        vector=found.vector,
        tensor=halved,
        source=f"{found.source}, GeForce: half rate where 32-bit floats are accumulated",
    )


def architecture_of(capability: tuple[int, int]) -> str:
    """NVIDIA's name of the architecture; ``compute capability 13.0`` where it is newer than this table."""
    if capability == (7, 5):
        return "Turing"
    if capability == (8, 9):
        return "Ada Lovelace"
    return _ARCHITECTURES.get(capability[0], f"compute capability {capability[0]}.{capability[1]}")
