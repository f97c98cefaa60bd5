"""``gkest llm``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, forms_of, say, write_beside
from gkestimator.cli.parameters import PATH, form_option, options_from
from gkestimator.llm.request import LlmRequest


@gkest_command(
    "llm",
    "gkest llm models/llama-8b.json --gpu H100 --batch 1,8,64",
    "gkest llm models/llama-8b.json --gpu L4,A100 --dtype fp16,int4 --input 512 --slo-tpot-ms 50",
)
@click.argument("model", type=PATH, metavar="MODEL")
@section("How it runs")
@options_from(LlmRequest)
@section("Output")
@click.option("--plot", type=PATH, help="Picture of the table to write beside it: .png, .svg or .pdf.")
@form_option("table", "markdown", "csv", "json", "parquet")
@click.option("-o", "output", type=PATH, help="File to write to, wholly or not at all.")
def command(model: Path, form: str | None, output: Path | None, plot: Path | None, **options: Any) -> int:
    """Say how fast a language model answers, how many requests it carries, and whether it fits.

    MODEL is a configuration as Hugging Face models have it (config.json), or a decoder's ONNX file, with a cache of
    keys and values or without one; no network is used. A batch is that many equal requests whose prompts arrive
    together. TTFT is the time to the first token, TPOT the time per token after it. Exit status: 0 done, 1 where
    nothing fits, 2 the command or a file was wrong.
    """
    from gkestimator.cli.estimating import default_gpus
    from gkestimator.core.outputs import refuse_overwriting
    from gkestimator.llm.estimating import estimate_llm
    from gkestimator.llm.objectives import fits
    from gkestimator.llm.text import llm_words, render_llm
    from gkestimator.reporting.llm_picture import draw_llm

    # Before the estimate, not after.
    form, shape = forms_of(form, output, plot)
    refuse_overwriting({"-o": output, "--plot": plot}, [model, *options["gpu_specs"]])
    options["gpus"] = options["gpus"] or default_gpus()
    request = LlmRequest(model=model, **options)
    rows = estimate_llm(request, note=lambda line: say([line]))
    deliver(render_llm(rows, form), output)
    drawn = write_beside("--plot", plot, lambda: draw_llm(rows, shape))
    say(llm_words(rows, request.objectives))
    return 0 if drawn and any(map(fits, rows)) else 1
