"""Find GPU specifications: what a GPU type can do, from one TOML file each, every figure with unit and source.

:func:`gpu_catalogue` finds a type by name among the user's files, ``$GKEST_HOME/gpus``, the package and bundles, in
that order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from gkestimator.core.errors import SpecError, UsageError
from gkestimator.core.records import frozen
from gkestimator.core.specfiles import spec_header, spec_version
from gkestimator.core.values import is_list, is_text
from gkestimator.hardware.gpu_reading import WHAT, load_gpu_file, load_gpu_sheet
from gkestimator.hardware.gpu_spec import STAND_IN, GpuSheet, GpuSpec
from gkestimator.hardware.gpu_suggestions import gpu_key, nearest, suggestion

__all__ = ["GpuCatalogue", "GpuSheet", "GpuSpec", "gpu_catalogue", "load_gpu_file"]

_MAX_TEXT = 100
ALL_GPUS = "all"
ARCHITECTURES = ("kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")
"""Names that stand for every GPU of an architecture, oldest first."""
DEFAULT_GPUS = ("T4", "L4", "A100-SXM4-80GB", "H100-SXM")
"""What the command line estimates for where no GPU is named: inference and training boards that clouds rent."""


@frozen
class _Entry:
    """Hold a specification file, not yet parsed beyond its header."""

    path: Path
    name: str
    aliases: tuple[str, ...]
    short_names: tuple[str, ...]

    def keys(self) -> dict[str, bool]:
        """Return every key of this entry; True where it is a short name that stands for several types."""
        keys = {gpu_key(n): True for n in self.short_names}
        keys.update((gpu_key(n), False) for n in (self.name, *self.aliases))
        return keys


@lru_cache(maxsize=512)
def _entry(path: Path, changed_ns: int, size: int) -> _Entry:
    del changed_ns, size  # part of the cache's key: a changed file is read again
    header = spec_header(path, what=WHAT)
    name = header.get("name")
    aliases = header.get("aliases", [])
    shorts = header.get("short_names", [])
    if not isinstance(name, str) or not is_list(aliases, is_text) or not is_list(shorts, is_text):
        raise SpecError(f"{path}: not a {WHAT}: needs name (text), aliases and short_names (lists of texts)")
    return _Entry(path=path, name=name, aliases=tuple(aliases), short_names=tuple(shorts))


@lru_cache(maxsize=256)
def _sheet(path: Path, changed_ns: int, size: int) -> GpuSheet:
    del changed_ns, size
    return load_gpu_sheet(path)


@lru_cache(maxsize=256)
def _spec(path: Path, changed_ns: int, size: int) -> GpuSpec:
    return _sheet(path, changed_ns, size).spec()


def _loaded_sheet(path: Path) -> GpuSheet:
    return _sheet(*spec_version(path, what=WHAT))


def _loaded_spec(path: Path) -> GpuSpec:
    return _spec(*spec_version(path, what=WHAT))


def _files_in(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(sorted(path for path in folder.iterdir() if path.suffix == ".toml"))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as e:
        raise SpecError(f"{folder}: cannot list the GPU specifications: {e.strerror}") from e


def _user_folder() -> Path | None:
    home = os.environ.get("GKEST_HOME")
    if home:
        return Path(home) / "gpus"
    try:
        return Path.home() / ".config" / "gkest" / "gpus"
    except RuntimeError:  # no home directory: a container's bare user id
        return None


def _package_folder() -> Path:
    return Path(str(files("gkestimator.datasets"))) / "gpus"


class GpuCatalogue:
    """Find GPU types by name, in layers: files named by the user, the user's folder, the package, then
    bundles, which come from anyone and so never say otherwise than the package. The first layer wins.

    Files are parsed when they are asked for: naming a packaged type by its canonical name opens its file
    alone.
    """

    def __init__(
        self, layers: Iterable[tuple[Path, ...]], *, package: Path, last: Iterable[tuple[Path, ...]] = ()
    ) -> None:
        self._layers = tuple(layers)
        self._package = package
        self._last = tuple(last)

    def names(self) -> tuple[str, ...]:
        """Return the canonical names of every type, sorted. Raises SpecError."""
        names = {entry.name for entries in self._all_layers() for entry in entries}
        return tuple(sorted(names, key=str.casefold))

    def complete_names(self) -> tuple[str, ...]:
        """Return those of :meth:`names` that can be estimated: no figure is unknown that every estimate needs. Raises
        SpecError."""
        return tuple(name for name in self.names() if not self.sheet(name)[0].missing())

    def spec(self, text: str) -> GpuSpec:
        """Return the specification that ``text`` names. Raises UsageError, SpecError."""
        return self.resolve(text)[0]

    def expanded(self, texts: Iterable[str]) -> Mapping[str, bool]:
        """Return the names of types that ``texts`` mean, in their order, each once; True where a group alone named it.

        ``all`` stands for every type, the name of an architecture (:data:`ARCHITECTURES`) for every type of it;
        CPUs described as GPUs are in no group. Other texts pass as they are. Raises UsageError for an architecture
        without any type, SpecError for a bad file.
        """
        names: dict[str, bool] = {}
        for text in texts:
            word = text.strip().casefold()
            if word != ALL_GPUS and word not in ARCHITECTURES:
                names[text] = False
                continue
            members = self._group(word)
            if not members:
                raise UsageError(
                    f"no GPU of architecture {word} is described; `gkest gpus` lists the known ones"
                )
            for name in members:
                names.setdefault(name, True)
        return names

    def _group(self, word: str) -> list[str]:
        """Return the names of the types that ``word``, ``all`` or an architecture, stands for."""
        members = []
        for name in self.names():
            architecture = self.sheet(name)[0].architecture
            if architecture == STAND_IN:
                continue
            if word in (ALL_GPUS, architecture.split()[0].casefold()):
                members.append(name)
        return members

    def canonical(self, text: str) -> str:
        """Return the canonical name of the type that ``text`` names; ``text`` as it is where no such type is
        known. Raises SpecError."""
        try:
            return self.sheet(text)[0].name
        except UsageError:
            return text

    def resolve(self, text: str) -> tuple[GpuSpec, str | None]:
        """Return the specification that ``text`` names, and a note where a short name (``V100``) took its default, or a
        user's file took over a name of a packaged type.

        Case, spaces, hyphens, underscores and the words NVIDIA, Tesla and GeForce in front do not matter;
        device names as nvidia-smi and torch print them are known. Raises UsageError with the closest types for an
        unknown name and for a type of which a figure is unknown that every estimate needs, SpecError for a bad file.
        """
        path, note = self._path(text)
        sheet = _loaded_sheet(path)
        if sheet.missing():
            values = sheet.values
            bandwidth = values["dram_bytes_per_s"]
            listed = nearest(
                self._complete_sheets(),
                values["compute_capability"],
                values["sms"],
                None if bandwidth is None else bandwidth / 1e9,
            )
            raise UsageError(f"{sheet.refusal()}; nearest by architecture: {', '.join(listed)}")
        return _loaded_spec(path), note

    def sheet(self, text: str) -> tuple[GpuSheet, str | None]:
        """Return all that is known of the type that ``text`` names, complete or not, and the note of `resolve`.

        Raises UsageError for an unknown name, SpecError for a bad file.
        """
        path, note = self._path(text)
        return _loaded_sheet(path), note

    def _path(self, text: str) -> tuple[Path, str | None]:
        """Return the file that describes what ``text`` names, and a note where the name could mean another."""
        if len(text) <= _MAX_TEXT:
            key = gpu_key(text)
        else:
            key = ""
        if not key:
            raise UsageError(f"{text[:_MAX_TEXT]!r} is not a GPU name; `gkest gpus` lists the known ones")
        for paths in self._layers:
            match = _index(_entries(paths)).get(key)
            if match is not None:
                return match.entry.path, self._note(match, text, own=True)
        direct = _packaged_keys(self._package).get(key)
        if direct is not None:
            return direct, None
        for paths in (_files_in(self._package), *self._last):
            match = _index(_entries(paths)).get(key)
            if match is not None:
                return match.entry.path, self._note(match, text, own=False)
        raise UsageError(self._unknown(text, key))

    def _complete_sheets(self) -> list[GpuSheet]:
        """Return the sheets of every packaged type that can be estimated."""
        sheets = [_loaded_sheet(path) for path in _files_in(self._package)]
        return [sheet for sheet in sheets if not sheet.missing()]

    def _all_layers(self) -> Iterable[tuple[_Entry, ...]]:
        for paths in (*self._layers, _files_in(self._package), *self._last):
            yield _entries(paths)

    def _note(self, match: _Match, text: str, *, own: bool) -> str | None:
        """Return a note where ``text`` might have meant another type than ``match``, else None."""
        name = match.entry.name
        if own:
            shipped = _index(_entries(_files_in(self._package))).get(gpu_key(text))
            if shipped is not None and shipped.entry.name != name:
                return f"GPU {text!r} is taken as {name} of {match.entry.path}, not as the shipped {shipped.entry.name}"
        if not match.is_short:
            return None
        stem = gpu_key(text)
        others = [n for n in self.names() if gpu_key(n).startswith(stem) and n != name]
        note = f"GPU {text!r} is taken as {name}"
        if others:
            note += f"; others are {', '.join(others)}"
        return note

    def _unknown(self, text: str, key: str) -> str:
        names: dict[str, str] = {}
        for entries in self._all_layers():
            for entry in entries:
                names.update(dict.fromkeys(entry.keys(), entry.name))
        hint = suggestion(key, names, self._complete_sheets(), self._package)
        return f"unknown GPU {text!r}; {hint}"


@frozen
class _Match:
    """Hold the entry that a name means; ``is_short``: it was a short name, which stands for several types."""

    entry: _Entry
    is_short: bool


def _index(entries: tuple[_Entry, ...]) -> Mapping[str, _Match]:
    """Return the keys of one layer. Two files that claim one key are refused: which one wins would be chance."""
    index: dict[str, _Match] = {}
    for entry in entries:
        for key, is_short in entry.keys().items():
            if key in index:
                raise SpecError(
                    f"{entry.path}: its name or alias {key!r} is also that of {index[key].entry.path}"
                )
            index[key] = _Match(entry=entry, is_short=is_short)
    return index


def _entries(paths: tuple[Path, ...]) -> tuple[_Entry, ...]:
    return tuple(_entry(*spec_version(path, what=WHAT)) for path in paths)


@lru_cache(maxsize=4)
def _packaged_keys(folder: Path) -> Mapping[str, Path]:
    """Return packaged files by canonical name; each is named after it (a test holds them to that)."""
    return {gpu_key(path.stem): path for path in _files_in(folder)}


def _bundled(bundles: Iterable[Path | str]) -> Iterable[tuple[Path, ...]]:
    """Yield the files of each bundle's ``gpus`` folder, a layer per bundle."""
    for folder in bundles:
        paths = _files_in(Path(folder) / "gpus")
        if paths:
            yield paths


def _user_bundles(gpus: Path | None) -> tuple[Path, ...]:
    """Return the folders of ``$GKEST_HOME/models``."""
    if gpus is None:
        return ()
    try:
        return tuple(sorted((gpus.parent / "models").iterdir()))
    except OSError:
        return ()


def gpu_catalogue(
    extra_files: Iterable[Path | str] = (), *, bundles: Iterable[Path | str] = ()
) -> GpuCatalogue:
    """Return the catalogue of ``extra_files`` (checked at once), ``$GKEST_HOME/gpus``
    (``~/.config/gkest/gpus``), the package, and, for types that none of these knows, ``bundles`` and those in
    ``$GKEST_HOME/models`` (their ``gpus`` folders).

    Raises SpecError for a bad extra file.
    """
    extra = tuple(Path(path) for path in extra_files)
    for path in extra:
        _loaded_sheet(path)
    user = _user_folder()
    last = (*_bundled(bundles), *_bundled(_user_bundles(user)))
    return GpuCatalogue((extra, _files_in(user) if user else ()), package=_package_folder(), last=last)
