"""Write a folder to try everything with: real models, a language model's configuration, a workload, a cluster, made-up
measurements.
"""

from __future__ import annotations

import contextlib
import filecmp
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, OutputError, UsageError
from gkestimator.core.leftovers import scratch_folder
from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.onnx_io.demo_models import write_minilm, write_mobilenet_v2
from gkestimator.tables.files import output_errors
from gkestimator.tables.together import rename_together

_WORKLOAD = """\
# What is asked of the models: requests a second, and within how many milliseconds each is to be answered.
models:
- {name: resnet50, rate_rps: 300, slo_ms: 100}
- {name: mobilenet_v2, rate_rps: 600, slo_ms: 50}
- {name: minilm, rate_rps: 400, slo_ms: 50}
"""
_CLUSTER = """\
# The GPUs that there are.
gpus:
- {type: T4, count: 2}
- {type: L4, count: 1}
"""
# No GPU was near: the figures only have the form of measurements, and one lies outside its interval.
_MEASURED = """\
model,gpu,runtime,batch_size,dims,latency_ms
resnet50,T4,onnxruntime,1,,4.4
resnet50,T4,onnxruntime,8,,21.9
mobilenet_v2,T4,onnxruntime,8,,7.1
minilm,T4,onnxruntime,8,sequence=128,12.5
"""
# The sizes of Llama 3.1 8B, as its authors published them.
_DECODER = """\
{
 "model_type": "llama",
 "hidden_size": 4096,
 "num_hidden_layers": 32,
 "num_attention_heads": 32,
 "num_key_value_heads": 8,
 "intermediate_size": 14336,
 "vocab_size": 128256,
 "max_position_embeddings": 131072,
 "tie_word_embeddings": false
}
"""
_TEXTS = {
    "models/llama-8b.json": _DECODER,
    "workload.yaml": _WORKLOAD,
    "cluster.yaml": _CLUSTER,
    "made-up-measurements.csv": _MEASURED,
}


def write_demo_folder(folder: Path) -> tuple[Path, ...]:
    """Write the files into ``folder``, all or none, and return the paths of those that were not there.

    ``models/`` holds resnet50, mobilenet_v2 and minilm, whose weights are zeros, and a language model's configuration.
    A file that is there with the same content stays; another one is never replaced. Raises UsageError naming it,
    OutputError where nothing can be written.
    """
    is_new = not folder.exists()
    try:
        return _write_demo_folder(folder)
    except GkestimatorError:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # it is empty: what is written aside is taken away
        raise


def _write_demo_folder(folder: Path) -> tuple[Path, ...]:
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(".gkest-demo", folder) as aside:
            for write_model in (write_resnet50, write_mobilenet_v2, write_minilm):
                write_model(aside / "models")
            for name, text in _TEXTS.items():
                (aside / name).write_text(text, encoding="utf-8")
            made = {folder / path.relative_to(aside): path for path in sorted(aside.rglob("*.*"))}
            missing = [path for path in made if not _is_there(path, made[path])]
            (folder / "models").mkdir(exist_ok=True)
            rename_together([(path, str(made[path])) for path in missing])
    return tuple(missing)


def _is_there(path: Path, same: Path) -> bool:
    """Return whether ``path`` is there with the content of ``same``. Raises UsageError where it has another one."""
    if not path.exists():
        return False
    if not path.is_file():
        raise OutputError(f"{path}: found no regular file, expected one or none")
    if not filecmp.cmp(path, same, shallow=False):
        raise UsageError(
            f"{path}: is there already with another content; expected a new folder, or one of gkest demo --all"
        )
    return True
