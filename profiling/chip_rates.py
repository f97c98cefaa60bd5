"""Say what a GPU does not tell of itself: results per clock and SM, which its capability file states.

The rates are dense, with 32-bit accumulation, which GeForce cards of compute capability 7.5 to 12 do at half rate.
"""

from __future__ import annotations

from gkestimator.core.records import frozen
from gkestimator.hardware.gpu_capabilities import Capability, capability_of, packaged_capabilities
from gkestimator.profiling.type_names import CountByName, NumberByName

_GUIDE = "CUDA C++ Programming Guide, table 'Throughput of Native Arithmetic Instructions', column"
_FLOAT_TENSOR = ("tf32", "fp16", "bf16", "fp8")


@frozen
class ChipRates:
    """Hold the rates of a chip, with the source of all.

    ``cores``: fp32 results per clock and SM. ``vector``: rate of other types as a multiple of fp32's. ``tensor``:
    dense operations (a multiply-add counted as two) of the tensor cores per clock and SM.
    """

    cores: int
    vector: NumberByName
    tensor: CountByName
    source: str


def chip_rates(version: tuple[int, int], name: str) -> ChipRates | None:
    """Return the rates of a chip of compute capability (major, minor) sold as ``name``; None where the package has no
    capability file for it."""
    capability = capability_of(version)
    if capability is None:
        return None
    tensor = dict(capability.tensor)
    source = _source(capability)
    if tensor and "geforce" in name.lower():
        source = f"{source}, GeForce: half rate where 32-bit floats are accumulated"
        for precision in tensor.keys() & _FLOAT_TENSOR:
            tensor[precision] //= 2
    return ChipRates(
        cores=capability.limits["cuda_cores_per_sm"],
        vector={precision: rate.ratio for precision, rate in capability.vector.items()},
        tensor=tensor,
        source=source,
    )


def _source(capability: Capability) -> str:
    major, minor = capability.version
    source = f"{_GUIDE} {major}.{minor}"
    if capability.tensor:
        return f"{source}; tensor cores: {capability.architecture} white paper"
    return source


def architecture_of(version: tuple[int, int]) -> str:
    """Return NVIDIA's name of the architecture; ``compute capability 13.0`` where no file is as new.

    A minor version without a file (an embedded chip, say) is of the architecture that began its major version.
    """
    capability = capability_of(version)
    if capability is not None:
        return capability.architecture
    major, minor = version
    for known in packaged_capabilities():
        if known.version[0] == major:
            return known.architecture
    return f"compute capability {major}.{minor}"
