"""Begin iterations of replicas that serve language models: who gets pages, who is preempted, how long it takes.

The rules are those of vLLM's scheduler (W. Kwon et al., Efficient Memory Management for Large Language Model Serving
with PagedAttention, SOSP 2023, section 4.5): first come, first served; where pages run out, the sequence admitted last
gives up its pages, waits before all others and computes them again. Prompts in parts beside sequences that decode are
those of A. Agrawal et al., Sarathi-Serve, OSDI 2024, section 4.
"""

from __future__ import annotations

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.dropping import drop
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part


@part
def take_lengths(s: c.EngineState, x: int, i: int) -> None:
    """Give request ``i`` of source ``x`` the source's next lengths."""
    at = s.x[x, c.X_LENGTH] + s.x[x, c.X_CAME] % s.x[x, c.X_LENGTHS]
    s.x[x, c.X_CAME] += 1
    s.q[i, c.Q_PROMPT] = s.lengths[at, c.L_PROMPT]
    s.q[i, c.Q_ANSWER] = s.lengths[at, c.L_ANSWER]
    s.q[i, c.Q_CACHED] = 0
    s.q[i, c.Q_MADE] = 0
    s.q[i, c.Q_NEW] = 0
    s.q[i, c.Q_HELD] = 0
    s.qf[i, c.QF_BEGAN] = -1.0
    s.qf[i, c.QF_FIRST] = -1.0


@part
def pages_of(s: c.EngineState, w: int, tokens: int) -> int:
    """Return the pages that hold ``tokens``."""
    page = s.w[w, c.W_PAGE]
    return int((tokens + page - 1) // page)


@part
def leave_replica(s: c.EngineState, r: int) -> None:
    """Take note that a request that was given to replica ``r`` is there no more."""
    s.r[r, c.R_GIVEN] -= 1
    s.v[s.r[r, c.R_SERVER], c.V_TICKS] -= int(s.curves[s.r[r, c.R_CURVE] + 1, c.C_TICKS])


@part
def join_sequences(s: c.EngineState, r: int, i: int, now: float) -> None:
    """Let request ``i`` wait at replica ``r``; one that all pages together cannot hold is dropped.

    The last token of an answer is never read again, so it is not cached.
    """
    w = s.r[r, c.R_ITERATES]
    if pages_of(s, w, s.q[i, c.Q_PROMPT] + s.q[i, c.Q_ANSWER] - 1) > s.w[w, c.W_PAGES]:
        leave_replica(s, r)
        drop(s, i, s.r[r, c.R_MODEL])
        return
    if s.r[r, c.R_WAITING] == 0:
        s.r[r, c.R_HEAD] = i
    else:
        s.i[s.r[r, c.R_TAIL], c.I_NEXT] = i
    s.r[r, c.R_TAIL] = i
    s.r[r, c.R_WAITING] += 1
    if s.w[w, c.W_BUSY] == 0:
        iterate(s, r, now)


@part
def iterate(s: c.EngineState, r: int, now: float) -> None:
    """Begin the next iteration of replica ``r``, whose last one is over, where there is anything to do."""
    w = s.r[r, c.R_ITERATES]
    i = s.w[w, c.W_HEAD]
    while i >= 0:
        s.q[i, c.Q_NEW] = 0
        i = s.i[i, c.I_NEXT]
    budget = s.w[w, c.W_BUDGET]
    if s.w[w, c.W_CHUNKED] == 1:
        left = go_on(s, r, w, budget)
        if left > 0:
            admit(s, r, w, left, now)
    elif not admit(s, r, w, budget, now):
        go_on(s, r, w, budget)
    if s.w[w, c.W_COUNT] == 0:
        return
    s.w[w, c.W_BUSY] = 1
    s.wf[w, c.WF_SINCE] = now
    order = s.z[c.Z_ORDER]
    s.z[c.Z_ORDER] = order + 1
    takes = iteration_ms(s, w) * s.rf[r, c.RF_FACTOR]
    push_event(s, now + takes, c.ITERATED, order, r)


@part
def go_on(s: c.EngineState, r: int, w: int, budget: int) -> int:
    """Give sequences that hold pages their new tokens, in order of admission.

    Returns what is left of ``budget``; 0 where one was preempted, for then none is admitted.
    """
    i = s.w[w, c.W_HEAD]
    preempted = False
    while i >= 0:
        known = s.q[i, c.Q_PROMPT] + s.q[i, c.Q_MADE]
        new = min(known - s.q[i, c.Q_CACHED], budget)
        lacking = pages_of(s, w, s.q[i, c.Q_CACHED] + new) - s.q[i, c.Q_HELD]
        itself = False
        while lacking > s.w[w, c.W_FREE] and not itself:
            itself = s.w[w, c.W_TAIL] == i
            preempt(s, r, w)
            preempted = True
        if itself:
            break
        if lacking > 0:
            s.q[i, c.Q_HELD] += lacking
            s.w[w, c.W_FREE] -= lacking
        s.q[i, c.Q_NEW] = new
        budget -= new
        i = s.i[i, c.I_NEXT]
    return 0 if preempted else int(budget)


@part
def preempt(s: c.EngineState, r: int, w: int) -> None:
    """Take the pages of the sequence that was admitted last; it waits before all others."""
    i = s.w[w, c.W_TAIL]
    unlink(s, w, i)
    s.q[i, c.Q_CACHED] = 0
    if s.r[r, c.R_WAITING] == 0:
        s.r[r, c.R_TAIL] = i
        s.i[i, c.I_NEXT] = -1
    else:
        s.i[i, c.I_NEXT] = s.r[r, c.R_HEAD]
    s.r[r, c.R_HEAD] = i
    s.r[r, c.R_WAITING] += 1
    s.m[s.r[r, c.R_MODEL], c.M_PREEMPTED] += 1


@part
def unlink(s: c.EngineState, w: int, i: int) -> None:
    """Take sequence ``i`` out of those that hold pages, and free its own."""
    before = s.q[i, c.Q_BEFORE]
    following = s.i[i, c.I_NEXT]
    if before < 0:
        s.w[w, c.W_HEAD] = following
    else:
        s.i[before, c.I_NEXT] = following
    if following < 0:
        s.w[w, c.W_TAIL] = before
    else:
        s.q[following, c.Q_BEFORE] = before
    s.i[i, c.I_NEXT] = -1
    s.w[w, c.W_COUNT] -= 1
    s.w[w, c.W_FREE] += s.q[i, c.Q_HELD]
    s.q[i, c.Q_HELD] = 0


@part
def admit(s: c.EngineState, r: int, w: int, budget: int, now: float) -> bool:
    """Admit requests that wait, in order, while pages for all their known tokens are free and ``budget`` lasts.

    Where prompts go whole, one that is longer than the budget goes alone. Returns whether any was admitted.
    """
    count = 0
    while s.r[r, c.R_WAITING] > 0 and s.w[w, c.W_COUNT] < s.w[w, c.W_MOST] and budget > 0:
        i = s.r[r, c.R_HEAD]
        known = s.q[i, c.Q_PROMPT] + s.q[i, c.Q_MADE]
        pages = pages_of(s, w, known)
        if pages > s.w[w, c.W_FREE]:
            break
        new = known
        if new > budget:
            if s.w[w, c.W_CHUNKED] == 1:
                new = budget
            elif count > 0:
                break
        s.r[r, c.R_HEAD] = s.i[i, c.I_NEXT]
        s.r[r, c.R_WAITING] -= 1
        append(s, w, i)
        s.w[w, c.W_FREE] -= pages
        s.q[i, c.Q_HELD] = pages
        s.q[i, c.Q_NEW] = new
        if s.qf[i, c.QF_BEGAN] < 0.0:
            s.qf[i, c.QF_BEGAN] = now
        budget -= new
        count += 1
    return count > 0


@part
def append(s: c.EngineState, w: int, i: int) -> None:
    """Put sequence ``i`` behind those that hold pages."""
    last = s.w[w, c.W_TAIL]
    s.q[i, c.Q_BEFORE] = last
    s.i[i, c.I_NEXT] = -1
    if last < 0:
        s.w[w, c.W_HEAD] = i
    else:
        s.i[last, c.I_NEXT] = i
    s.w[w, c.W_TAIL] = i
    s.w[w, c.W_COUNT] += 1


@part
def iteration_ms(s: c.EngineState, w: int) -> float:
    """Return how long the iteration takes: :meth:`gkestimator.llm.steps.StepLaw.iteration_ms` of what is new in it."""
    prompts = 0
    fresh = 0
    decoding = 0
    cached = 0
    beyond = 0.0
    i = s.w[w, c.W_HEAD]
    while i >= 0:
        new = s.q[i, c.Q_NEW]
        before = s.q[i, c.Q_CACHED]
        if new == 1 and before > 0:
            decoding += 1
            cached += before
        elif new > 0:
            prompts += 1
            fresh += new
            if before > 0:
                through = prompt_ms(s, w, 1.0, float(before + new)) - prompt_ms(s, w, 1.0, float(before))
                beyond += max(0.0, through - prompt_ms(s, w, 1.0, float(new)))
        i = s.i[i, c.I_NEXT]
    takes = 0.0
    if prompts > 0:
        takes = prompt_ms(s, w, float(prompts), fresh / prompts) + beyond
    if decoding > 0:
        takes = max(0.0, takes - s.wf[w, c.WF_LEAST]) + step_ms(s, w, float(decoding), cached / decoding)
    return float(takes)


@part
def prompt_ms(s: c.EngineState, w: int, prompts: float, tokens: float) -> float:
    """Return the time of a pass over ``prompts`` of ``tokens`` each."""
    batches = s.w[w, c.W_BATCHES]
    columns = s.w[w, c.W_PROMPTS]
    rows_at = s.w[w, c.W_LAW]
    values_at = rows_at + batches + columns + s.w[w, c.W_CONTEXTS]
    return between(s.laws, rows_at, batches, rows_at + batches, columns, values_at, prompts, tokens)


@part
def step_ms(s: c.EngineState, w: int, sequences: float, context: float) -> float:
    """Return the time of a step of ``sequences`` with ``context`` cached tokens each."""
    batches = s.w[w, c.W_BATCHES]
    prompts = s.w[w, c.W_PROMPTS]
    columns = s.w[w, c.W_CONTEXTS]
    rows_at = s.w[w, c.W_LAW]
    columns_at = rows_at + batches + prompts
    values_at = columns_at + columns + batches * prompts
    return between(s.laws, rows_at, batches, columns_at, columns, values_at, sequences, context)


@part
def between(
    laws: c.Floats,
    rows_at: int,
    rows: int,
    columns_at: int,
    columns: int,
    values_at: int,
    row: float,
    column: float,
) -> float:
    """Return the value at ``row`` and ``column`` of a grid, straight between its points and constant beyond."""
    i, up = place(laws, rows_at, rows, row)
    k, right = place(laws, columns_at, columns, column)
    at = values_at + i * columns + k
    down = columns if up > 0.0 else 0
    beside = 1 if right > 0.0 else 0
    low = laws[at] + right * (laws[at + beside] - laws[at])
    high = laws[at + down] + right * (laws[at + down + beside] - laws[at + down])
    return float(low + up * (high - low))


@part
def place(laws: c.Floats, first: int, count: int, value: float) -> tuple[int, float]:
    """Return the last of ``count`` ascending points that is not above ``value``, and the part of the way to the
    next."""
    if value <= laws[first]:
        return 0, 0.0
    low = 0
    high = count
    while high - low > 1:
        middle = (low + high) // 2
        if laws[first + middle] <= value:
            low = middle
        else:
            high = middle
    if low == count - 1:
        return low, 0.0
    return low, float((value - laws[first + low]) / (laws[first + low + 1] - laws[first + low]))
