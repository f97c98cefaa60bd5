"""``gkest export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import OUTPUT, gkest_command, section
from gkestimator.cli.outputs import say, say_written, tell, to_stdout
from gkestimator.cli.parameters import PATH, Names, Paths, gpu_spec_option, names_option, safe_csv_option
from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.escaping import utf8
from gkestimator.exporting.registry import EXPORTERS, exporter_class, make_exporters


def _list_targets(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        for name in EXPORTERS:
            exporter = exporter_class(name)
            tell(f"{name}: {exporter.summary.rstrip('.')}. {exporter.limits}")
        ctx.exit()


@gkest_command(
    "export",
    "gkest export plan.json --to triton --models models -o deploy",
    "gkest export table.csv --to csv --only resnet50 --gpu L4 --batch-size 8 -o rows",
)
@click.argument("source", type=PATH, metavar="PLAN|TABLE")
@section("What to ask")
@names_option("--to", "names", f"Targets: {', '.join(EXPORTERS)}.", required=True)
@click.option("--creq", help="Measure of compute: sm-util-mean, occupancy-max, occupancy-mean.")
@section("Rows of a table")
@names_option("--only", "only_models", "Rows of a table: models; default: all.")
@click.option("--gpu", help="Rows of a table: GPU type.")
@click.option("--batch-size", type=click.IntRange(1), help="Rows of a table: batch size.")
@click.option("--runtime", help="Rows of a table: runtime.")
@click.option("--dtype", help="Rows of a table: dtype.")
@click.option("--dims", metavar="NAME=N,...", help="Rows of a table: dimensions, as the column has them.")
@click.option("--sm-share", type=float, help="Rows of a table: percent of the SMs.")
@section("How it is written")
@click.option(
    "--models",
    multiple=True,
    metavar="PATH",
    help="ONNX files or folders, for triton and modelmesh; repeatable.",
)
@gpu_spec_option
@click.option(
    "--image", help="Container image of the replicas (hami, kai, volcano, device-plugin, mig, dra...)."
)
@click.option("--queue", help="Queue (kai).")
@click.option(
    "--gpus-per-server", type=click.IntRange(1, 1024), help="GPUs of a server (triton); default: 8."
)
@click.option(
    "--storage-uri", help="Where the models lie (kserve, modelmesh); a model's name is put behind it."
)
@click.option(
    "--targets",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_list_targets,
    help="List the targets, what each is told and which limits it enforces.",
)
@section(OUTPUT)
@safe_csv_option
@click.option("-o", "--output", type=PATH, help="Folder; a target's files go to OUTPUT/<target>.")
def command(
    source: Path,
    names: Names,
    output: Path | None,
    models: Names,
    gpu_specs: Paths,
    creq: str | None,
    image: str | None,
    queue: str | None,
    storage_uri: str | None,
    sm_share: float | None,
    gpus_per_server: int | None,
    only_models: Names,
    **only: Any,
) -> int:
    """Write a plan, or a table that leaves one row per model, for the schedulers that people run.

    Demands are rounded up, replica counts down; what a target cannot express is refused. Every file says which limits
    its target enforces. Without -o a target of a single file is written to stdout. Exit status: 0 done, 1 some targets
    were refused, 2 all were or the command was wrong.
    """
    from gkestimator.exporting.loading import TableFilter, load_deployment
    from gkestimator.exporting.writing import write_files

    exporters = make_exporters(
        names, image=image, queue=queue, storage_uri=storage_uri, gpus_per_server=gpus_per_server
    )
    deployment = load_deployment(
        source,
        creq=creq,
        models=models,
        gpu_specs=gpu_specs,
        only=TableFilter(sm_share_pct=sm_share, **only),
        names=only_models,
    )
    read = (source, *map(Path, deployment.models.values()), *gpu_specs)
    failed = 0
    say(deployment.notes, "note")
    for exporter in exporters:
        try:
            files = exporter.files(deployment)
            if output is not None:
                written = write_files(output / exporter.name, files, read=read)
            elif len(files) > 1 or len(exporters) > 1:
                raise UsageError("several files are to be written: expected -o FOLDER")
        except GkestimatorError as e:
            # One target that cannot say something does not keep the others from being written.
            failed += 1
            say([_named(exporter.name, str(e))], "error")
            continue
        if output is None:
            to_stdout(utf8(files[0].text))
        else:
            shown = [str(path) for path in written[:3]]
            if len(written) > 3:
                more = len(written) - 3
                shown[2] += f" and {more} more file{'s' * (more > 1)}"
            say_written(*shown)
        say(_named(exporter.name, line) for line in (exporter.limits, *exporter.notices(deployment)))
    if not failed:
        return 0
    if failed == len(exporters):
        return 2
    return 1


def _named(target: str, line: str) -> str:
    if line.startswith(f"{target}: "):
        return line
    return f"{target}: {line}"
