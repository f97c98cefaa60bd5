"""MIG: the profiles that GPU types can be cut into, and which of them fit on one GPU together.

Profiles and how many of each fit are those of NVIDIA's mig-parted. A profile has a number of sevenths of the
compute, and eighths of the memory; where on the GPU's eighths it may begin is in NVIDIA's MIG User Guide
("MIG Device Names", table of GPU instance profiles and placements). The number of each profile that fits
follows from that; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen

_EIGHTHS = 8
# Name without memory: (sevenths of the compute, eighths of the memory, where it may begin, of the eighths).
_SHAPES: Mapping[str, tuple[int, int, tuple[int, ...]]] = {
    "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    "1g+": (1, 2, (0, 2, 4, 6)),  # one seventh of the compute with two eighths of the memory
    "2g": (2, 2, (0, 2, 4)),
    "3g": (3, 4, (0, 4)),
    "4g": (4, 4, (0,)),
    "7g": (7, 8, (0,)),
}
_A100_40 = {"1g": 5, "1g+": 10, "2g": 10, "3g": 20, "4g": 20, "7g": 40}
_80 = {"1g": 10, "1g+": 20, "2g": 20, "3g": 40, "4g": 40, "7g": 80}
_H200 = {"1g": 18, "1g+": 35, "2g": 35, "3g": 71, "4g": 71, "7g": 141}
# GPU type: gigabytes in the names of its profiles.
MIG_GPUS: Mapping[str, Mapping[str, int]] = {
    "A100-PCIE-40GB": _A100_40,
    "A100-SXM4-40GB": _A100_40,
    "A100-PCIE-80GB": _80,
    "A100-SXM4-80GB": _80,
    "H100-PCIE": _80,
    "H100-SXM": _80,
    "H200": _H200,
}


@frozen
class MigProfile:
    """One profile. ``compute_pct`` is percent of the whole GPU, in sevenths. ``memory_bytes`` is what it is
    sure to have: the eighths of the whole GPU's nominal gigabytes, and no more than the gigabytes in its
    name, of 10^9 bytes (drivers show a little more)."""

    name: str
    sevenths: int
    eighths: int
    starts: tuple[int, ...]
    memory_bytes: int

    @property
    def compute_pct(self) -> float:
        """Return percent of the GPU's compute."""
        return 100 * self.sevenths / 7

    @property
    def resource(self) -> str:
        """Return what a container asks for under the device plugin's ``mixed`` strategy."""
        return f"nvidia.com/mig-{self.name}"


def mig_profiles(gpu_type: str) -> tuple[MigProfile, ...]:
    """Return the profiles of ``gpu_type``, each larger than the one before in compute or memory and smaller
    in neither. Raises UsageError for a GPU that has none, or of which none are known."""
    sizes = MIG_GPUS.get(gpu_type)
    if sizes is None:
        raise UsageError(
            f"{gpu_type}: no MIG profiles are known of it, expected one of {', '.join(MIG_GPUS)}"
        )
    whole = sizes["7g"] * 10**9
    profiles = []
    for shape, gigabytes in sizes.items():
        sevenths, eighths, starts = _SHAPES[shape]
        profiles.append(
            MigProfile(
                name=f"{shape.rstrip('+')}.{gigabytes}gb",
                sevenths=sevenths,
                eighths=eighths,
                starts=starts,
                memory_bytes=min(gigabytes * 10**9, whole * eighths // _EIGHTHS),
            )
        )
    return tuple(profiles)


def smallest_profile(gpu_type: str, compute_pct: float, memory_bytes: int) -> MigProfile | None:
    """Return the smallest profile of ``gpu_type`` that holds both; None where not even the whole GPU does."""
    for profile in mig_profiles(gpu_type):
        if compute_pct <= profile.compute_pct * (1 + 1e-9) and memory_bytes <= profile.memory_bytes:
            return profile
    return None


def fits_together(profiles: Sequence[MigProfile]) -> bool:
    """Return whether one GPU can be cut into ``profiles``: each somewhere where it may begin, none over
    another."""
    return _place(sorted(profiles, key=lambda p: (-p.eighths, -p.sevenths)), 0)


def _place(left: Sequence[MigProfile], taken: int) -> bool:
    if not left:
        return True
    profile = left[0]
    for start in profile.starts:
        mask = ((1 << profile.eighths) - 1) << start
        if not taken & mask and _place(left[1:], taken | mask):
            return True
    return False
