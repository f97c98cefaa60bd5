"""Which GPU type a device is: one of the catalogue, one of the user's files, or a new one whose file is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.escaping import utf8
from gkestimator.core.leftovers import scratch_folder
from gkestimator.hardware.gpus import GpuSpec, load_gpu_file
from gkestimator.profiling.building.contents import Problems
from gkestimator.profiling.building.entries import Measured
from gkestimator.profiling.building.provenance import beside
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.type_names import Texts


class DeviceNames:
    """Tell the GPU types of the devices that measured. ``gpu_specs``: the user's files; one that nobody else
    answers to is taken for a device that the catalogue does not know, if there is one such file and one such
    device.

    The file of a new type goes beside ``output``: one that is there with other figures (the user was asked to check
    them) is taken and kept. ``made`` maps canonical names to the text of specifications that
    were made of what a device says of itself.
    """

    def __init__(
        self,
        output: Path,
        gpu_specs: Sequence[Path],
        *,
        known_gpu: Callable[[DeviceFacts], GpuSpec | None],
        gpu_toml: Callable[[DeviceFacts], str],
    ) -> None:
        self._output = output
        self._known_gpu = known_gpu
        self._gpu_toml = gpu_toml
        self._files = {path: load_gpu_file(path) for path in gpu_specs}
        self._specs: dict[tuple[str, str], GpuSpec] = {}
        self._taken: dict[Path, str] = {}
        self.made: Texts = {}
        self.notes: list[str] = []

    def spec(self, facts: DeviceFacts) -> GpuSpec:
        """Return the type of the device. Raises SpecError or UsageError where it cannot be told."""
        key = (facts.kind, facts.name)
        if key not in self._specs:
            self._specs[key] = self._search(facts)
        return self._specs[key]

    def spec_of(self, measured: Measured, problems: Problems) -> GpuSpec | None:
        """Return the type of the device that measured an entry; None, which is said, where it cannot be told."""
        try:
            return self.spec(measured.chunk.device)
        except GkestimatorError as e:
            problems.of_entry(measured.origin, str(e), measured.entry.id)
            return None

    def made_notes(self) -> list[str]:
        """Return a line for each specification that was made of what a device says."""
        return [
            f"{name} is not in the catalogue: {self._place(name).name} says what the device tells of itself; check its "
            "figures"
            for name in self.made
        ]

    def made_files(self) -> dict[Path, bytes]:
        """Return the specifications that were made, where they go."""
        return {self._place(name): utf8(text) for name, text in self.made.items()}

    def _place(self, name: str) -> Path:
        return beside(self._output, f".{name}.toml")

    def _search(self, facts: DeviceFacts) -> GpuSpec:
        for path, spec in self._files.items():
            if _same(facts.name, (spec.name, *spec.aliases)):
                self._taken[path] = facts.name
                return spec
        known = self._known_gpu(facts)
        if known is not None:
            return known
        free = [path for path in self._files if path not in self._taken]
        if len(self._files) == 1 and free:
            self._taken[free[0]] = facts.name
            spec = self._files[free[0]]
            self.notes.append(f"device {facts.name!r} is taken as {spec.name} of {free[0]}")
            return spec
        try:
            text = self._gpu_toml(facts)
        except GkestimatorError as e:
            raise UsageError(
                f"device {facts.name!r}: no specification of this type, and none could be made of what the device "
                f"says of itself ({e}); give one with --gpu-spec FILE"
            ) from e
        spec = _load(text)
        there = self._place(spec.name)
        if there.exists():
            corrected = load_gpu_file(there)
            if corrected != spec:
                self.notes.append(
                    f"{there.name}: its figures differ from what the device tells; they are used and kept "
                    "(remove it to have it written anew)"
                )
                return corrected
        self.made[spec.name] = text
        return spec


def _same(device: str, names: Sequence[str]) -> bool:
    """Return whether a driver's name is one of ``names``: case, spaces, hyphens and the maker's words do not
    matter."""
    return _key(device) in {_key(name) for name in names}


def _key(text: str) -> str:
    words = [w for w in re.split(r"[^0-9a-z]+", text.casefold()) if w]
    while len(words) > 1 and words[0] in ("nvidia", "tesla", "geforce"):
        words = words[1:]
    return "".join(words)


def _load(text: str) -> GpuSpec:
    with scratch_folder("gkest-device") as folder:
        path = folder / "device.toml"
        path.write_text(text, encoding="utf-8")
        return load_gpu_file(path)
