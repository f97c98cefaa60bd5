"""Say how long an iteration of a serving engine takes, and how many tokens its cache holds, by ``gkest llm``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gkestimator.core.errors import TableError
from gkestimator.core.records import frozen
from gkestimator.llm.profiles import ENGINES
from gkestimator.tables.llm_requirement import LlmRequirement

Numbers: TypeAlias = tuple[float, ...]
Grid: TypeAlias = tuple[Numbers, ...]
Points: TypeAlias = Mapping[tuple[int, float], float]
Rows: TypeAlias = Sequence[LlmRequirement]

SETTING = ("model", "gpu", "gpus", "engine", "dtype", "kv_dtype")
"""What the rows of one law have in common."""


@frozen
class StepLaw:
    """Say how long iterations take (ms).

    ``prompt_ms[i][k]``: a pass over ``batches[i]`` prompts of ``prompts[k]`` tokens. ``step_ms[i][k]``: a step of
    ``batches[i]`` sequences with ``contexts[k]`` cached tokens each. All three ascend. Between points times are
    straight lines; below the smallest they are that one's, which is no less; nothing above the largest may be asked.
    """

    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    contexts: Numbers
    prompt_ms: Grid
    step_ms: Grid

    def prompt(self, count: float, tokens: float) -> float:
        """Return the time of a pass over ``count`` prompts of ``tokens`` each."""
        return _between(self.batches, self.prompts, self.prompt_ms, count, tokens)

    def step(self, sequences: float, context: float) -> float:
        """Return the time of a step of ``sequences`` with ``context`` cached tokens each."""
        return _between(self.batches, self.contexts, self.step_ms, sequences, context)

    def iteration_ms(self, prompts: Sequence[tuple[int, int]], cached: Sequence[int]) -> float:
        """Return the time of a pass over parts of ``prompts`` (tokens cached before, new tokens) and one new token of
        each sequence that has ``cached`` tokens.

        Sequences that differ count as as many of their mean length. A part behind others of its prompt takes what the
        longer prompt takes more than the shorter, where that is more than the part alone: it attends to all before it.
        Prompts and steps together read the weights once: the least step of the table is taken off.
        """
        takes = 0.0
        if prompts:
            takes = self.prompt(len(prompts), sum(new for _, new in prompts) / len(prompts))
            for before, new in prompts:
                if before:
                    through = self.prompt(1, before + new) - self.prompt(1, before)
                    takes += max(0.0, through - self.prompt(1, new))
        if cached:
            takes = max(0.0, takes - self.step_ms[0][0])
            takes += self.step(len(cached), sum(cached) / len(cached))
        return takes


@frozen
class Serving:
    """Hold what the rows of one setting say for serving: ``law``, and ``pages`` of ``page_tokens`` in the cache of one
    copy. ``budget_tokens``: new tokens of an iteration by the engine's default.
    """

    row: LlmRequirement
    law: StepLaw
    pages: int
    page_tokens: int
    budget_tokens: int

    @property
    def longest(self) -> int:
        """Return the most tokens of a prompt and its answer together that the rows cover."""
        return self.law.prompts[-1]

    @property
    def most_sequences(self) -> int:
        """Return the most sequences at once that the rows cover."""
        return self.law.batches[-1]


def settings(rows: Rows) -> dict[tuple[object, ...], list[LlmRequirement]]:
    """Return ``rows`` by what :data:`SETTING` names, in order of their first."""
    groups: dict[tuple[object, ...], list[LlmRequirement]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in SETTING), []).append(row)
    return groups


def serving_of(rows: Rows, table: str = "table") -> Serving:
    """Return what ``rows``, all of one setting, say for serving. Raises TableError naming what is missing."""
    prompts: dict[tuple[int, float], float] = {}
    steps: dict[tuple[int, float], float] = {}
    for row in rows:
        if row.ttft_ms is not None:
            prompts[row.batch_size, row.input_tokens] = row.ttft_ms
        if row.tpot_ms is not None:
            # A step's time is all but straight in the length: its mean is that at the mean length.
            steps[row.batch_size, row.input_tokens + (row.output_tokens - 2) / 2] = row.tpot_ms
    first = rows[0]
    where = f"{table}: {first.model} on {first.gpus} x {first.gpu} ({first.engine}, {first.dtype})"
    if not prompts or not steps:
        raise TableError(f"{where}: no row has both ttft_ms and tpot_ms, which serving needs")
    batches, lengths, prompt_ms = _grid(prompts, f"{where}: ttft_ms", "input")
    of_steps, contexts, step_ms = _grid(steps, f"{where}: tpot_ms", "context")
    if of_steps != batches:
        raise TableError(f"{where}: found tpot_ms at batches {of_steps}, expected {batches} as ttft_ms has")
    law = StepLaw(
        batches=batches,
        prompts=tuple(int(length) for length in lengths),
        contexts=contexts,
        prompt_ms=prompt_ms,
        step_ms=step_ms,
    )
    engine = ENGINES.get(first.engine)
    page = 1 if engine is None else engine.page_tokens
    budget = 0 if engine is None else engine.chunk_tokens
    return Serving(
        row=first,
        law=law,
        pages=_pages(rows, page, where),
        page_tokens=page,
        budget_tokens=budget or int(lengths[-1]),
    )


def _grid(points: Points, where: str, second: str) -> tuple[tuple[int, ...], Numbers, Grid]:
    """Return both axes of ``points`` and their values by row. Raises TableError where one is missing."""
    batches = tuple(sorted({batch for batch, _ in points}))
    columns = tuple(sorted({column for _, column in points}))
    for batch in batches:
        for column in columns:
            if (batch, column) not in points:
                raise TableError(
                    f"{where}: none at batch {batch}, {second} {column:g}, expected every pair of the table's batches "
                    "and lengths"
                )
    return batches, columns, tuple(tuple(points[batch, column] for column in columns) for batch in batches)


def _pages(rows: Rows, page: int, where: str) -> int:
    """Return how many pages the cache has on each GPU: what weights, context and the largest intermediate results of
    all rows leave. A token's bytes are the most of any row's. Raises TableError where a column is null.
    """
    fixed = 0
    token_bytes = 0.0
    visible = None
    for row in rows:
        parts = (row.weights_bytes, row.activations_bytes, row.context_bytes, row.kv_bytes)
        if None in parts or not row.mreq_bytes or not row.mreq_pct:
            raise TableError(
                f"{where}: memory is unknown at batch {row.batch_size}, which the size of the cache needs"
            )
        weights, activations, context, cache = (part or 0 for part in parts)
        fixed = max(fixed, weights + activations + context)
        held = -(-(row.input_tokens + row.output_tokens) // page) * page
        token_bytes = max(token_bytes, cache / (row.batch_size * held))
        visible = row.mreq_bytes / (row.mreq_pct / 100)
    if visible is None or token_bytes <= 0:
        raise TableError(f"{where}: no row has kv_bytes, which the size of the cache needs")
    # A percentage is a rounded quotient: half a byte makes up for it.
    pages = int((visible + 0.5 - fixed) / (page * token_bytes))
    if pages < 1:
        raise TableError(
            f"{where}: does not fit: {fixed:,} of {visible:,.0f} bytes are taken before any token"
        )
    return pages


def _between(rows: Sequence[float], columns: Sequence[float], grid: Grid, row: float, column: float) -> float:
    i, up = _place(rows, row)
    k, right = _place(columns, column)
    i_next = i + 1 if up > 0 else i
    k_next = k + 1 if right > 0 else k
    low = grid[i][k] + right * (grid[i][k_next] - grid[i][k])
    high = grid[i_next][k] + right * (grid[i_next][k_next] - grid[i_next][k])
    return low + up * (high - low)


def _place(points: Sequence[float], value: float) -> tuple[int, float]:
    """Return the last point that is not above ``value``, and the part of the way to the next."""
    at = bisect_right(points, value) - 1
    if at < 0 or at == len(points) - 1:
        return max(at, 0), 0.0
    return at, (value - points[at]) / (points[at + 1] - points[at])
