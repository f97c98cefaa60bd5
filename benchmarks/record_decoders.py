"""Count the parameters of decoders by transformers' own modules, for tests/data/decoders/parameters.recorded.

    pip install torch transformers
    python benchmarks/record_decoders.py

Modules are made on torch's device ``meta``: shapes alone, no memory, no download. The configurations beside the record
hold the sizes that the models' authors published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "decoders"


def parameters(config: dict[str, Any]) -> int:
    """Return the number of distinct parameters of the causal language model that ``config`` describes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(config)
    kind = fields.pop("model_type")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    model.tie_weights()
    distinct = {id(parameter): parameter.numel() for parameter in model.parameters()}
    return sum(distinct.values())


def main() -> None:
    """Write the record."""
    record = {}
    for path in sorted(FOLDER.glob("*.json")):
        record[path.stem] = parameters(json.loads(path.read_text(encoding="utf-8")))
        print(f"{path.stem}: {record[path.stem]:,}")
    (FOLDER / "parameters.recorded").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
