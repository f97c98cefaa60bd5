"""``gkest llm``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, say, write_beside
from gkestimator.cli.parameters import PATH, form_option, options_from
from gkestimator.llm.request import LlmRequest


@gkest_command(
    "llm",
    "gkest llm models/config.json --gpu H100 --batch 1,8,64",
    "gkest llm models/config.json --gpu L4,A100 --dtype fp16,int4 --input 512 --slo-tpot-ms 50",
)
@click.argument("model", type=PATH, metavar="CONFIG.json")
@options_from(LlmRequest)
@section("Output")
@click.option("--plot", type=PATH, help="Picture of the table to write beside it: .png, .svg or .pdf.")
@form_option("table", "markdown", "csv", "json", "parquet")
@click.option("-o", "--output", type=PATH, help="File to write to, wholly or not at all.")
def command(model: Path, form: str | None, output: Path | None, plot: Path | None, **options: Any) -> int:
    """Say how fast a language model answers, how many requests it carries, and whether it fits.

    CONFIG.json is a configuration as Hugging Face models have it; no network is used. A batch is that many equal
    requests whose prompts arrive together. TTFT is the time to the first token, TPOT the time per token after it. Exit
    status: 0 done, 1 where nothing fits, 2 the command or a file was wrong.
    """
    from gkestimator.core.outputs import by_suffix, refuse_overwriting
    from gkestimator.hardware.gpus import DEFAULT_GPUS
    from gkestimator.llm.estimating import estimate_llm
    from gkestimator.llm.text import Objectives, fits, llm_words, render_llm
    from gkestimator.reporting.llm_picture import draw_llm
    from gkestimator.reporting.style import PICTURE_SUFFIXES, check_drawable
    from gkestimator.tables import format_of

    refuse_overwriting({"-o": output, "--plot": plot}, [model, *options["gpu_specs"]])
    if plot is not None:
        picture_form = by_suffix("--plot", plot, PICTURE_SUFFIXES)
        check_drawable()
    options["gpus"] = options["gpus"] or DEFAULT_GPUS
    request = LlmRequest(model=model, **options)
    rows = estimate_llm(request)
    form = form or ("table" if output is None else format_of(output))
    deliver(render_llm(rows, form), output)
    drawn = write_beside("--plot", plot, lambda: draw_llm(rows, picture_form))
    say(llm_words(rows, Objectives(ttft_ms=request.slo_ttft_ms, tpot_ms=request.slo_tpot_ms)))
    return 0 if drawn and any(map(fits, rows)) else 1
