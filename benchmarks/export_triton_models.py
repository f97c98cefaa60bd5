"""Export networks of Triton's published tables, without weights, for ``benchmarks/runtimes_side_by_side.py``.

Run by hand where torch and onnx are installed (``pip install torch==2.13.0 onnx``):
``python benchmarks/export_triton_models.py .accuracy/triton_graphs``; files that are there are kept. It prints
parameters and operations of each beside what is published. BERT is written by ``benchmarks/export_ort_models.py``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnx
import torch
from _triton_networks import PUBLISHED, Network, networks
from export_ort_models import forget_weights
from torch.utils.flop_counter import FlopCounterMode


def write(network: Network, path: Path) -> tuple[int, int]:
    """Write ``path`` and return the network's parameters and the operations of one sample (two a multiplication)."""
    torch.manual_seed(0)
    module = network.build().eval()
    single = [value[:1] for value in network.inputs.values()]
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        module(*single)
    axes = {name: dict(network.axes) for name in network.inputs}
    with tempfile.TemporaryDirectory() as folder:
        full = str(Path(folder, path.name))
        with torch.no_grad():
            torch.onnx.export(
                module,
                tuple(network.inputs.values()),
                full,
                dynamo=False,
                opset_version=13,
                input_names=list(network.inputs),
                output_names=["output"],
                dynamic_axes=axes,
            )
        model = onnx.load(full)
    forget_weights(model)
    path.write_bytes(model.SerializeToString())
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return parameters, counter.get_total_flops()


def main(folder: Path) -> None:
    """Write the networks that are not in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, network in networks().items():
        path = folder / f"{name}.onnx"
        if path.exists():
            continue
        parameters, flops = write(network, path)
        published = PUBLISHED[name]
        print(f"{name}: {parameters:,} parameters, {flops / 1e9:.2f} GFLOP; published: {published.source}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
