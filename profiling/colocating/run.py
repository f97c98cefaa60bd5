"""``measure_pairs``: see that everything is there, measure what is left, make the table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.leftovers import scratch_folder
from gkestimator.hardware.runtimes import executor_of
from gkestimator.jobs.stopping import Progress, RunLog, Stop, stop_on_signals
from gkestimator.profiling.building.devices import DeviceNames
from gkestimator.profiling.building.provenance import data_format
from gkestimator.profiling.colocating.campaign import PairCampaign, Stopped
from gkestimator.profiling.colocating.fleet import WorkerFleet
from gkestimator.profiling.colocating.jobs import (
    DEFAULT_SHARES,
    UNCONFINED,
    PairMeans,
    PairOptions,
    PairsReport,
)
from gkestimator.profiling.colocating.journal import Header, Journal, journal_path
from gkestimator.profiling.colocating.mps import MpsError
from gkestimator.profiling.colocating.order import PairJob, jobs
from gkestimator.profiling.colocating.rows import read_demands, rows_of, slowdowns, worst_words
from gkestimator.profiling.colocating.session import WorkerSession
from gkestimator.profiling.plan import PlanEntry, SweepPlan
from gkestimator.profiling.running.run import choose_devices
from gkestimator.tables import COLOCATION
from gkestimator.tables.together import write_together
from gkestimator.tables.writing import encode_csv, encode_parquet

_LONGEST_FOLDER = 36  # of a socket's path the system takes 107 characters


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
    """Measure the whole models of ``plan`` side by side, two at a time, and write the co-location table
    ``output`` (.parquet or .csv).

    What earlier runs into ``output`` measured counts: it stands in the journal beside it; where nothing is
    left no device is needed. ``tables``: requirement rows of the models, from which the columns of what they
    ask for alone are filled; what is null in one is taken from the next. ``progress`` is called with (stage,
    done, total). Raises UsageError before anything starts (no whole model, no such device, MPS required and
    not to be had, another way of measuring than before), TableError for a broken table or journal,
    OutputError.
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
    names = DeviceNames(output, gpu_specs, known_gpu=means.known_gpu, gpu_toml=means.gpu_toml)
    with Journal(journal_path(output)) as journal:
        log, wanted = _work(plan, entries, options, journal, names, means, progress)
        log.messages += names.notes
        records = list(journal.measured())
        if records and journal.header is not None:
            rows, problems = rows_of(records, journal.header, demands)
            COLOCATION.check(rows, where=str(output))
            write_together({**names.made_files(), output: encode(COLOCATION, rows)})
            log.problems += problems
            log.messages += names.made_notes()
        # Counts are over the whole journal, earlier runs included.
        known = [journal.of(job.key) for job in wanted]
        sharing = None
        if journal.header is not None:
            sharing = journal.header.sharing
        return PairsReport(
            output=str(output),
            sharing=sharing,
            pairs=len(records),
            failed=sum(r is not None and r.reason is not None for r in known),
            left=known.count(None),
            marked=sum(r.quality != "ok" for r in records),
            minutes=(time.monotonic() - begun) / 60,
            slowdowns=slowdowns(records),
            worst=worst_words(records),
            tables=bool(tables),
            **log.outcome(),
        )


def _work(
    plan: SweepPlan,
    entries: Sequence[PlanEntry],
    options: PairOptions,
    journal: Journal,
    names: DeviceNames,
    means: PairMeans,
    progress: Progress | None,
) -> tuple[RunLog, Sequence[PairJob]]:
    """Measure what is left; return what is said of it, and all jobs."""
    wanted = _done(entries, options, journal)
    if wanted is None:
        executor = options.executor or (journal.header.executor if journal.header else plan.runtime)
        executor_of(executor)  # refuses a runtime that nothing here profiles under
        campaign = _measure(entries, executor, options, journal, names, means, progress)
        wanted = campaign.jobs
        log: RunLog = campaign
    else:
        log = RunLog()
        log.messages.append("nothing is left to measure: the table is made of the journal")
    if len(entries) < len(plan.entries):
        log.messages.append(
            f"{len(plan.entries) - len(entries)} operators of the plan left out: whole models alone are paired"
        )
    return log, wanted


def _done(entries: Sequence[PlanEntry], options: PairOptions, journal: Journal) -> list[PairJob] | None:
    """Return all jobs, where earlier runs have measured them; else None."""
    header = journal.header
    if header is None or options.executor not in (None, header.executor):
        return None
    if options.mps == "required" and header.sharing != "mps":
        return None
    shares = _shares(options, header.sharing, header.sharing_note)
    wanted = jobs(entries, shares, seed=options.seed, most_pairs=options.pairs)
    records = [journal.of(job.key) for job in wanted]
    measured = all(record is not None and record.reason is None for record in records)
    return wanted if measured else None


def _measure(
    entries: Sequence[PlanEntry],
    executor: str,
    options: PairOptions,
    journal: Journal,
    names: DeviceNames,
    means: PairMeans,
    progress: Progress | None,
) -> PairCampaign:
    stop = Stop(options.minutes)
    device = _device(options, means)
    facts = means.facts(device)
    gpu = names.spec(facts).name
    campaign = PairCampaign(journal, facts, means, stop, progress)
    with stop_on_signals(stop), _private_folder() as folder:
        files = folder / "entries"
        files.mkdir()
        try:
            with WorkerFleet(executor, device, facts, means, folder, options, campaign.tick) as fleet:
                session = WorkerSession(
                    fleet=fleet,
                    files=files,
                    runtime=executor,
                    seed=options.seed,
                    seconds=options.seconds,
                    entry_s=options.entry_s,
                )

                def first() -> PairJob:
                    shares = _shares(options, fleet.sharing, fleet.note)
                    campaign.jobs = jobs(entries, shares, seed=options.seed, most_pairs=options.pairs)
                    return campaign.jobs[0]

                fleet.prove(first, session.try_ready)
                journal.begin(
                    Header(
                        executor=executor,
                        device=facts.name,
                        gpu=gpu,
                        driver=facts.driver,
                        sharing=fleet.sharing,
                        sharing_note=fleet.note,
                        versions=fleet.versions,
                        seed=options.seed,
                        seconds=options.seconds,
                        started=datetime.now(UTC).isoformat(timespec="seconds"),
                        command=options.command,
                    )
                )
                try:
                    campaign.work(session)
                finally:
                    campaign.messages += fleet.words()
        except Stopped:
            campaign.stop_for(stop)
        except MpsError as e:  # it was there, and does not start again
            campaign.stop(f"stopped: {e}")
    return campaign


def _device(options: PairOptions, means: PairMeans) -> str:
    asked = () if options.device is None else (options.device,)
    devices = choose_devices(asked, means)
    if len(devices) != 1:
        raise UsageError(
            f"device: found {len(devices)} GPUs, expected one: pairs are measured on one at a time"
        )
    if devices[0] == "cpu":
        if options.mps == "required":
            raise UsageError("mps: found required with device cpu, expected a GPU")
        _only_unconfined(options, "a CPU has no SMs to share")
    elif options.mps == "off":
        _only_unconfined(options, "without MPS nothing confines a model")
    return devices[0]


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
    """Make a folder that nobody else may look into (mkdtemp: mode 700), with a path short enough for sockets."""
    usual = tempfile.gettempdir()
    place = usual if len(usual) < _LONGEST_FOLDER else "/tmp"
    with scratch_folder("gkest-pairs", Path(place)) as path:
        yield path
