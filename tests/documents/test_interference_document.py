"""The file of fitted coefficients: what is written is read again; what is wrong is said in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.documents.interference import (
    FILE_NAME,
    ContentionWeights,
    FittedWeights,
    GpuletWeights,
    InterferenceFile,
    InterferenceFit,
    LawError,
    SeenRange,
    interference_yaml,
    read_interference,
)
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.interference.gpulet_law import GpuletCoefficients, read_coefficients
from gkestimator.interference.registry import make_interference

FOUND = InterferenceFile(
    gpulet=GpuletWeights(
        fitted=True, constant=0.9, l2_own=0.1, l2_other=0.25, dram_own=1 / 3, dram_other=0.5
    ),
    contention=ContentionWeights(
        sm_overlap=0.1, sm_excess=1.0, dram_overlap=0.2, dram_excess=1.1, l2_overlap=0.0, l2_excess=0.3
    ),
    fit=InterferenceFit(
        pairs="pairs: of #1.csv",
        pairs_sha256="ab" * 32,
        tables=("t.csv",),
        measurements=180,
        groups=90,
        models=("m0", "m1"),
        gpus=("V100-SXM2-16GB",),
        errors=(LawError(law="none", median_pct=20.0, p90_pct=40.0),),
        ranges=(SeenRange(name="slowdown", least=0.9, most=2.5),),
        notes=("a note, with: signs",),
        constant=1.25,
    ),
    fitted=FittedWeights(
        form="overlap",
        logarithm=True,
        constant=-0.1,
        sm=0.1,
        dram=0.2,
        l2=0.3,
        sm_more=0.4,
        dram_more=0.0,
        l2_more=0.5,
    ),
)


def document() -> Any:
    return yaml.safe_load(interference_yaml(FOUND))


def saved(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "i.yaml"
    path.write_bytes(interference_yaml(FOUND))
    assert read_interference(path) == FOUND
    assert interference_yaml(read_interference(path)) == path.read_bytes()


def test_contention_may_be_null_or_missing(tmp_path: Path) -> None:
    content = {**document(), "contention": None}
    assert read_interference(saved(tmp_path / "i.yaml", content)).contention is None
    del content["contention"]
    assert read_interference(saved(tmp_path / "i.yaml", content)).contention is None


def test_a_file_of_before_the_chosen_form_says_what_it_lacks(tmp_path: Path) -> None:
    content = document()
    del content["fitted"], content["fit"]["constant"]
    before = saved(tmp_path / "i.yaml", content)
    assert read_interference(before).fit.constant is None
    with pytest.raises(
        UsageError, match=r"i.yaml: found no field 'fitted', expected one: fit it to its pairs again"
    ):
        make_interference("fitted", before)


def test_the_chosen_form_is_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "i.yaml"
    path.write_bytes(interference_yaml(FOUND))
    terms = make_interference("fitted", path).terms(gpu_catalogue().spec("T4"))
    assert terms == (-2.0, -0.1, 0.1, 0.2, 0.3, 0.4, 0.0, 0.5)


def test_a_law_that_does_not_beat_the_constant_says_so_where_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "i.yaml"
    worse = LawError(law="contention, fitted", median_pct=6.0, p90_pct=9.0)
    better = LawError(law="gpulet, fitted", median_pct=4.0, p90_pct=9.0)
    errors = (LawError(law="constant", median_pct=5.0, p90_pct=10.0), worse, better)
    path.write_bytes(interference_yaml(replace(FOUND, fit=replace(FOUND.fit, errors=errors))))
    v100 = gpu_catalogue().spec("V100-SXM2-16GB")
    (note,) = make_interference("contention", path, [v100]).notes
    assert note == (
        "contention, fitted does not beat a constant of 1.25 (the mean slowdown of the pairs) on models left out: off by "
        "6.0 % (90th percentile 9.0 %), the constant by 5.0 % (90th percentile 10.0 %)"
    )
    assert make_interference("gpulet", path, [v100]).notes == ()


def test_both_laws_read_it_from_a_file_and_from_a_bundle(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(interference_yaml(FOUND))
    own = GpuletCoefficients(constant=0.9, l2_own=0.1, l2_other=0.25, dram_own=1 / 3, dram_other=0.5)
    for path in (tmp_path, tmp_path / FILE_NAME):
        assert read_coefficients(path) == own
        assert make_interference("gpulet", path).terms(None)[0] == 0.9  # type: ignore[arg-type]
        assert make_interference("contention", path).terms(None)[:7] == (1.0, 0.1, 1.0, 0.2, 1.1, 0.0, 0.3)  # type: ignore[arg-type]


def test_what_a_reader_must_know(tmp_path: Path) -> None:
    v100, t4 = (gpu_catalogue().spec(n) for n in ("V100-SXM2-16GB", "T4"))
    path = tmp_path / "i.yaml"
    path.write_bytes(interference_yaml(FOUND))
    for name in ("gpulet", "contention"):
        unfitted = ("contention is not fitted to measured pairs",) if name == "contention" else ()
        assert make_interference(name).notes == unfitted
        assert make_interference(name, path, [v100]).notes == ()
        (note,) = make_interference(name, path, [v100, t4]).notes
        assert note.endswith("of pairs on V100-SXM2-16GB, none on T4")
    kept = replace(FOUND, contention=None, gpulet=replace(FOUND.gpulet, fitted=False))
    path.write_bytes(interference_yaml(kept))
    for name in ("gpulet", "contention"):
        (note,) = make_interference(name, path, [v100]).notes
        assert "no better on models left out" in note


def change(path: str, value: Any) -> Callable[[Any], None]:
    def done(content: Any) -> None:
        *above, last = path.split(".")
        for key in above:
            content = content[int(key)] if isinstance(content, list) else content[key]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return done


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("fitted.form", "cubic", "fitted: form: found 'cubic', expected one of constant, overlap"),
        ("fitted.form", None, "fitted: form: missing, expected one of constant"),
        ("fitted.sm", -0.1, "fitted: sm: found -0.1"),
        ("schema_version", 2, "schema_version: found 2"),
        ("gpulet.constant", "x", "gpulet: constant: found 'x'"),
        ("gpulet.fitted", 1, "gpulet: fitted: found 1, expected true or false"),
        ("gpulet.l2_own", None, "l2_own is missing"),
        ("gpulet.more", 1.0, "'more' is not a field of gpulet's coefficients"),
        ("contention.sm_overlap", -0.1, "sm_overlap: found -0.1, expected a number of at least 0"),
        ("contention.sm_excess", float("nan"), "sm_excess: found nan"),
        ("contention.l2_excess", None, "l2_excess is missing"),
        ("contention", [1.0], "contention: found a list"),
        ("fit", None, "fit is missing"),
        ("fit.measurements", 0, "measurements: found 0"),
        ("fit.models", ["a", 3], "models: found something other than lines of text"),
        ("fit.errors", [{"law": "none"}], r"errors\[0\]: median_pct is missing"),
        ("fit.ranges", {"slowdown": [1, 2]}, "ranges: found a mapping"),
        ("other", 1, "'other' is not a field"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, path: str, value: Any, said: str) -> None:
    content = document()
    change(path, value)(content)
    file = saved(tmp_path / "i.yaml", content)
    with pytest.raises(DocumentError, match=said) as e:
        read_interference(file)
    assert "\n" not in str(e.value) and "i.yaml" in str(e.value)


def test_a_bundle_without_coefficients_and_a_policys_own_file(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=f"{FILE_NAME}: cannot be read"):
        read_interference(tmp_path)
    own = saved(tmp_path / "g.yaml", {"constant": 1.0, "l2_own": 0.0})
    with pytest.raises(DocumentError, match="schema_version is missing"):
        read_interference(own)
    with pytest.raises(DocumentError, match="l2_other is missing"):
        read_coefficients(own)
