"""``gkest doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import tell
from gkestimator.cli.parameters import form_option
from gkestimator.core.errors import UsageError

_HELP = """What this machine can do: GPU, driver, profilers, runtimes, bundles and where found, operators covered.

Reads only; what is absent is said, never an error. With --bundle it checks an estimator instead: relations that hold
between estimates whatever the true values are, on networks that it builds itself. Exit status then: 0 all hold, 1 one
does not, 2 the bundle cannot be read.
"""
_SHIPPED = "shipped"


@gkest_command(
    "doctor",
    "gkest doctor --probe",
    "gkest doctor --bundle my-bundle",
    help=_HELP,
)
@click.option("--probe", is_flag=True, help="Also make a small capture with each profiler (some seconds).")
@click.option(
    "--bundle",
    is_flag=False,
    flag_value=_SHIPPED,
    metavar="[FOLDER]",
    help="Check this bundle, without FOLDER the one that comes along (half a minute).",
)
@click.option(
    "--plans",
    type=click.IntRange(1, 1_000_000),
    help="With --bundle: random plans of every policy.  [default: 3]",
)
@form_option("table", "json", help="With --bundle: table for people (default), or JSON.")
def command(probe: bool, bundle: str | None, plans: int | None, form: str | None) -> int:
    """Print what this machine can do, section by section; or whether relations hold in a bundle."""
    if bundle is not None:
        return _check(bundle, plans, form)
    if plans is not None or form is not None:
        raise UsageError("--plans and --format: have a use with --bundle alone")
    from functools import partial

    from gkestimator.estimation.doctor import diagnose
    from gkestimator.profiling.diagnosis import profiler_facts

    for section, facts in diagnose(partial(profiler_facts, probing=probe)):
        tell(section)
        for name, fact in facts:
            tell(f"  {name:<25} {fact}")
    return 0


def _check(bundle: str, plans: int | None, form: str | None) -> int:
    from gkestimator.cli.progress import Progress
    from gkestimator.library.relations.suite import PLANS, check_bundles, outcomes_json, outcomes_text

    bundles = () if bundle == _SHIPPED else (Path(bundle),)
    with Progress() as progress:
        outcomes = list(check_bundles(bundles, plans=plans or PLANS, progress=progress))
    tell(outcomes_json(outcomes) if form == "json" else outcomes_text(outcomes))
    return int(any(outcome.failed for outcome in outcomes))
