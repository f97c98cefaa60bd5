"""``measure_pairs``: see that everything is there, measure what is left, make the table."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.jobs.stopping import Progress, Stop, stop_on_signals
from gkestimator.profiling.building.devices import DeviceNames
from gkestimator.profiling.building.provenance import beside, data_format
from gkestimator.profiling.colocating.campaign import PairCampaign, PairState, Stopped
from gkestimator.profiling.colocating.jobs import DEFAULT_SHARES, UNCONFINED, PairOptions, PairsReport
from gkestimator.profiling.colocating.journal import Header, Journal, journal_path
from gkestimator.profiling.colocating.means import PairMeans
from gkestimator.profiling.colocating.mps import MpsError
from gkestimator.profiling.colocating.order import PairJob, jobs
from gkestimator.profiling.colocating.rows import Demands, read_demands, rows_of, slowdowns, worst_words
from gkestimator.profiling.colocating.sharing import Shared
from gkestimator.profiling.plan import PlanEntry, SweepPlan
from gkestimator.profiling.running.machine import Machine
from gkestimator.profiling.running.run import choose_devices
from gkestimator.tables import COLOCATION, CoRun, TableSchema
from gkestimator.tables.together import write_together
from gkestimator.tables.writing import encode_csv, encode_parquet

Encode = Callable[[TableSchema[CoRun], Sequence[CoRun]], bytes]
_LONGEST_FOLDER = 60  # of a socket's path the system takes 107 characters


def measure_pairs(
    plan: SweepPlan,
    output: Path,
    options: PairOptions | None = None,
    *,
    tables: Sequence[Path] = (),
    gpu_specs: Sequence[Path] = (),
    progress: Progress | None = None,
    means: PairMeans | None = None,
) -> PairsReport:
    """Measure the whole models of ``plan`` side by side, two at a time, and write the co-location table ``output``
    (.parquet or .csv).

    What earlier runs into ``output`` measured counts: it stands in the journal beside it; where nothing is left no
    device is needed. ``tables``: requirement rows of the models, from which the columns of what they ask for alone are
    filled; what is null in one is taken from the next. ``progress`` is called with (stage, done, total). Raises
    UsageError before anything starts (no whole model, no such device, MPS required and not to be had, another way of
    measuring than before), TableError for a broken table or journal, OutputError.
    """
    options = options or PairOptions()
    means = means or PairMeans()
    begun = time.monotonic()
    encode = encode_csv if data_format(output) == "csv" else encode_parquet
    encode(COLOCATION, ())  # what writing needs is there, before anything is measured
    entries = [e for e in plan.entries if e.model is not None]
    if not entries:
        raise UsageError(
            "the plan holds no whole model, expected one at least: gkest profile plan --whole makes it"
        )
    demands = read_demands(tables) if tables else None
    names = DeviceNames(
        gpu_specs,
        known_gpu=means.known_gpu,
        gpu_toml=means.gpu_toml,
        place=lambda name: beside(output, f".{name}.toml"),
    )
    with Journal(journal_path(output)) as journal:
        done = _done(entries, options, journal)
        if done is None:
            executor = options.executor or (journal.header.executor if journal.header else plan.runtime)
            state = _measure(entries, executor, options, journal, names, means, progress)
        else:
            state = PairState(
                jobs=done, messages=["nothing is left to measure: the table is made of the journal"]
            )
        if len(entries) < len(plan.entries):
            state.messages.append(
                f"{len(plan.entries) - len(entries)} operators of the plan left out: whole models alone are paired"
            )
        state.messages += names.notes
        _write(state, journal, output, encode, demands, names)
        return _report(state, journal, str(output), (time.monotonic() - begun) / 60, bool(tables))


def _done(entries: Sequence[PlanEntry], options: PairOptions, journal: Journal) -> list[PairJob] | None:
    """All jobs, where earlier runs have measured them; else None."""
    header = journal.header
    if header is None or options.executor not in (None, header.executor):
        return None
    if options.mps == "required" and header.sharing != "mps":
        return None
    shares = _shares(options, header.sharing, header.sharing_note)
    found = jobs(entries, shares, seed=options.seed, most_pairs=options.pairs)
    measured = all((r := journal.of(job.key)) is not None and r.reason is None for job in found)
    return found if measured else None


def _measure(
    entries: Sequence[PlanEntry],
    executor: str,
    options: PairOptions,
    journal: Journal,
    names: DeviceNames,
    means: PairMeans,
    progress: Progress | None,
) -> PairState:
    stop = Stop(None if options.minutes is None else time.monotonic() + 60 * options.minutes)
    device = _device(options, means)
    facts = means.facts(device)
    gpu = names.spec(facts).name
    campaign = PairCampaign(journal, facts, means, stop, progress)
    with stop_on_signals(stop), _private_folder() as folder:
        try:
            with Shared(executor, device, facts, means, folder, options, campaign.tick) as shared:

                def first() -> PairJob:
                    shares = _shares(options, shared.sharing, shared.note)
                    campaign.state.jobs = jobs(entries, shares, seed=options.seed, most_pairs=options.pairs)
                    return campaign.state.jobs[0]

                versions = shared.prove(first)
                journal.begin(
                    Header(
                        executor=executor,
                        device=facts.name,
                        gpu=gpu,
                        driver=facts.driver,
                        sharing=shared.sharing,
                        sharing_note=shared.note,
                        versions=versions,
                        seed=options.seed,
                        seconds=options.seconds,
                        started=datetime.now(UTC).isoformat(timespec="seconds"),
                        command=options.command,
                    )
                )
                try:
                    campaign.work(shared.session)
                finally:
                    campaign.state.messages += shared.words()
        except Stopped:
            campaign.end()
        except MpsError as e:  # it was there, and does not start again
            campaign.state.stop(f"stopped: {e}", 1)
    return campaign.state


def _device(options: PairOptions, means: PairMeans) -> str:
    asked = () if options.device is None else (options.device,)
    found = choose_devices(asked, Machine(gpus=means.gpus))
    if len(found) != 1:
        raise UsageError(
            f"device: found {len(found)} GPUs, expected one: pairs are measured on one at a time"
        )
    if found[0] == "cpu":
        if options.mps == "required":
            raise UsageError("mps: found required with device cpu, expected a GPU")
        _only_unconfined(options, "a CPU has no SMs to share")
    elif options.mps == "off":
        _only_unconfined(options, "without MPS nothing confines a model")
    return found[0]


def _only_unconfined(options: PairOptions, why: str) -> None:
    for share in options.shares or ():
        if share != UNCONFINED:
            raise UsageError(f"shares: found {share[0]:g}:{share[1]:g}, expected 100:100 alone: {why}")


def _shares(options: PairOptions, sharing: str, note: str | None) -> tuple[tuple[float, float], ...]:
    if sharing == "mps":
        return tuple(dict.fromkeys(options.shares or DEFAULT_SHARES))
    if options.shares is not None and UNCONFINED not in options.shares:
        raise UsageError(f"shares: expected 100:100 among them: MPS cannot be had ({note})")
    return (UNCONFINED,)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that nobody else may look into (mkdtemp: mode 700), with a path short enough for sockets."""
    place = tempfile.gettempdir()
    path = Path(
        tempfile.mkdtemp(prefix="gkest-pairs-", dir=place if len(place) < _LONGEST_FOLDER else "/tmp")
    )
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _write(
    state: PairState,
    journal: Journal,
    output: Path,
    encode: Encode,
    demands: Demands | None,
    names: DeviceNames,
) -> None:
    """The table of all that the journal holds; nothing where it holds nothing."""
    records = list(journal.measured())
    if not records or journal.header is None:
        return
    rows, problems = rows_of(records, journal.header, demands)
    COLOCATION.check(rows, where=str(output))
    write_together({**names.made_files(), output: encode(COLOCATION, rows)})
    state.problems += problems
    state.messages += names.made_notes()


def _report(state: PairState, journal: Journal, output: str, minutes: float, tables: bool) -> PairsReport:
    records = list(journal.measured())
    found = [journal.of(job.key) for job in state.jobs]
    return PairsReport(
        output=output,
        sharing=None if journal.header is None else journal.header.sharing,
        pairs=len(records),
        failed=sum(r is not None and r.reason is not None for r in found),
        left=sum(r is None for r in found),
        marked=sum(r.quality != "ok" for r in records),
        minutes=minutes,
        slowdowns=slowdowns(records),
        worst=worst_words(records),
        stopped=state.stopped,
        stop_status=state.stop_status,
        problems=tuple(state.problems),
        messages=tuple(state.messages),
        tables=tables,
    )
