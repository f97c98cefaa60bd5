"""Find GPU specifications: what a GPU type can do, from one TOML file each, every figure with unit and source.

:func:`gpu_catalogue` finds a type by name among the user's files, ``$GKEST_HOME/gpus``, the package and bundles, in
that order.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from gkestimator.core.errors import SpecError, UsageError
from gkestimator.core.records import frozen
from gkestimator.core.specfiles import spec_header, spec_version
from gkestimator.core.values import is_list, is_text
from gkestimator.hardware.gpu_reading import WHAT, load_gpu_file
from gkestimator.hardware.gpu_spec import GpuSpec

__all__ = ["GpuCatalogue", "GpuSpec", "gpu_catalogue", "load_gpu_file"]

_MAX_TEXT = 100
# Makers' words that device names carry in front ("NVIDIA GeForce RTX 3090", "Tesla T4") and people leave out.
_MAKER_WORDS = frozenset({"nvidia", "tesla", "geforce"})


def _key(text: str) -> str:
    """Return what two spellings of a name share: no case, space, hyphen, underscore or leading maker's word."""
    words = [word for word in re.split(r"[\s_-]+", text.casefold()) if word]
    while len(words) > 1 and words[0] in _MAKER_WORDS:
        words = words[1:]
    return "".join(words)


@frozen
class _Entry:
    """Hold a specification file, not yet parsed beyond its header."""

    path: Path
    name: str
    aliases: tuple[str, ...]
    short_names: tuple[str, ...]

    def keys(self) -> dict[str, bool]:
        """Return every key of this entry; True where it is a short name that stands for several types."""
        keys = {_key(n): True for n in self.short_names}
        keys.update((_key(n), False) for n in (self.name, *self.aliases))
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
def _spec(path: Path, changed_ns: int, size: int) -> GpuSpec:
    del changed_ns, size
    return load_gpu_file(path)


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

    def spec(self, text: str) -> GpuSpec:
        """Return the specification that ``text`` names. Raises UsageError, SpecError."""
        return self.resolve(text)[0]

    def canonical(self, text: str) -> str:
        """Return the canonical name of the type that ``text`` names; ``text`` as it is where no such type is
        known. Raises SpecError."""
        try:
            return self.spec(text).name
        except UsageError:
            return text

    def resolve(self, text: str) -> tuple[GpuSpec, str | None]:
        """Return the specification that ``text`` names, and a note where a short name (``V100``) took its default.

        Case, spaces, hyphens, underscores and the words NVIDIA, Tesla and GeForce in front do not matter;
        device names as nvidia-smi and torch print them are known. Raises UsageError with the closest names,
        SpecError for a bad file.
        """
        if len(text) <= _MAX_TEXT:
            key = _key(text)
        else:
            key = ""
        if not key:
            raise UsageError(f"{text[:_MAX_TEXT]!r} is not a GPU name; `gkest gpus` lists the known ones")
        for paths in self._layers:
            match = _index(_entries(paths)).get(key)
            if match is not None:
                return self._loaded(match, text)
        direct = _packaged_keys(self._package).get(key)
        if direct is not None:
            return _loaded_spec(direct), None
        for paths in (_files_in(self._package), *self._last):
            match = _index(_entries(paths)).get(key)
            if match is not None:
                return self._loaded(match, text)
        raise UsageError(self._unknown(text, key))

    def _all_layers(self) -> Iterable[tuple[_Entry, ...]]:
        for paths in (*self._layers, _files_in(self._package), *self._last):
            yield _entries(paths)

    def _loaded(self, match: _Match, text: str) -> tuple[GpuSpec, str | None]:
        spec = _loaded_spec(match.entry.path)
        if not match.is_short:
            return spec, None
        stem = _key(text)
        others = [n for n in self.names() if _key(n).startswith(stem) and n != spec.name]
        note = f"GPU {text!r} is taken as {spec.name}"
        if others:
            note += f"; others are {', '.join(others)}"
        return spec, note

    def _unknown(self, text: str, key: str) -> str:
        names: dict[str, str] = {}
        for entries in self._all_layers():
            for entry in entries:
                names.update(dict.fromkeys(entry.keys(), entry.name))
        cutoff = 0.6
        if len(key) <= 3:
            cutoff = 0.5  # one wrong letter of two (L5) is half the name
        close = [names[k] for k in difflib.get_close_matches(key, names, n=8, cutoff=cutoff)]
        # "A100-SXM" and "A100-SXM4-40GB" are far apart by letters, but one starts the other.
        if len(key) >= 3:
            close += [name for k, name in names.items() if k.startswith(key)]
        hint = "`gkest gpus` lists the known ones"
        if close:
            hint = f"did you mean {', '.join(list(dict.fromkeys(close))[:5])}?"
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
    return {_key(path.stem): path for path in _files_in(folder)}


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
        _loaded_spec(path)
    user = _user_folder()
    last = (*_bundled(bundles), *_bundled(_user_bundles(user)))
    return GpuCatalogue((extra, _files_in(user) if user else ()), package=_package_folder(), last=last)
