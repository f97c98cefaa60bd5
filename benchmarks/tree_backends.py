"""Compare NumPy arrays with ONNX Runtime for storing the tree members: ``python benchmarks/tree_backends.py``

Prints, for the default bundle's linear regressor: cold start (import and load, in a fresh process), microseconds per row at several
row counts, and the largest difference between the two. Needs onnx and onnxruntime besides the package.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gkestimator.bundles.bundle import load_bundle
from gkestimator.kernel_models.regressors import Forest

_COLD = {
    "numpy": "from gkestimator.bundles.bundle import load_bundle\n[m.stack for m in load_bundle().models]",
    "onnxruntime": "import onnxruntime\nonnxruntime.InferenceSession({path!r}, providers=['CPUExecutionProvider'])",
    "nothing": "import numpy",
}


def to_onnx(forest: Forest, features: int, path: Path) -> None:
    """The forest as one TreeEnsembleRegressor with a target per member."""
    from onnx import TensorProto, helper, save

    trees, inner = forest.feature.shape
    member = np.searchsorted(forest.starts, np.arange(trees), side="right") - 1
    nodes: dict[str, list[int | float | str]] = {
        k: [] for k in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    }
    for tree in range(trees):
        for node in range(2 * inner + 1):
            leaf = node >= inner
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(node)
            nodes["featureids"].append(0 if leaf else int(forest.feature[tree, node]))
            nodes["modes"].append("LEAF" if leaf else "BRANCH_LEQ")
            limit = 0.0 if leaf else float(forest.threshold[tree, node])
            nodes["values"].append(min(limit, 3e38))
            nodes["truenodeids"].append(0 if leaf else 2 * node + 1)
            nodes["falsenodeids"].append(0 if leaf else 2 * node + 2)
    leaves = inner + 1
    operator = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=len(forest.starts),
        base_values=[float(b) for b in forest.base], post_transform="NONE",
        target_treeids=np.repeat(np.arange(trees), leaves).tolist(), target_nodeids=list(range(inner, 2 * inner + 1)) * trees,
        target_ids=np.repeat(member, leaves).tolist(), target_weights=forest.leaf.reshape(-1).astype(float).tolist(),
        **{f"nodes_{k}": v for k, v in nodes.items()},
    )  # fmt: skip
    graph = helper.make_graph(
        [operator], "forest", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, len(forest.starts)])],
    )  # fmt: skip
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8),
        str(path),
    )


def best_us(call: Callable[[], object], rows: int) -> float:
    """Microseconds per row, the best of several runs."""
    times = []
    for _ in range(7):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times) / rows * 1e6


def main() -> None:
    """Print the comparison."""
    import onnxruntime

    model = load_bundle().models[0]
    forest = model.stack.forest
    assert forest is not None
    width = len(model.feature_names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forest.onnx"
        to_onnx(forest, width, path)
        print(f"{model.name}: {len(forest.leaf)} trees of depth {forest.depth}; ONNX file {path.stat().st_size / 1e6:.1f} MB, "
              f"bundle file {model.path.stat().st_size / 1e6:.1f} MB")  # fmt: skip
        for name, program in _COLD.items():
            text = program.format(path=str(path))
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                subprocess.run([sys.executable, "-c", text], check=True)
                times.append(time.perf_counter() - begun)
            print(f"cold start, {name}: {min(times) * 1e3:.0f} ms")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(0)
        for rows in (10, 100, 1000):
            x = rng.uniform(model.low, model.high + 1e-3, (rows, width)).astype(np.float32)
            ours, theirs = forest.predict(x), session.run(None, {"x": x})[0]
            first = best_us(lambda x=x: forest.predict(x), rows)
            second = best_us(lambda x=x: session.run(None, {"x": x}), rows)
            print(
                f"{rows} rows: NumPy {first:.1f}, onnxruntime {second:.1f} us a row; largest difference {np.abs(ours - theirs).max():.1e}"
            )


if __name__ == "__main__":
    main()
