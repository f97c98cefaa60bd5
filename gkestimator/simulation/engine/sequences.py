"""Begin iterations of replicas that serve language models: who gets pages, who is preempted, how long it takes.

The rules are those of vLLM's scheduler (W. Kwon et al., Efficient Memory Management for Large Language Model Serving
with PagedAttention, SOSP 2023, section 4.5): first come, first served; where pages run out, the sequence admitted last
gives up its pages, waits before all others and computes them again. Prompts in parts beside sequences that decode are
those of A. Agrawal et al., Sarathi-Serve, OSDI 2024, section 4.
"""

from __future__ import annotations

from gkestimator.simulation.arrays import Floats
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.dropping import drop
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.state import EngineState


@part
def take_lengths(s: EngineState, x: int, i: int) -> None:
    """Give request ``i`` of source ``x`` the source's next lengths."""
    at = s.sources[x].length + s.sources[x].came % s.sources[x].lengths
    s.sources[x].came += 1
    s.sequences[i].prompt = s.lengths[at].prompt
    s.sequences[i].answer = s.lengths[at].answer
    s.sequences[i].cached = 0
    s.sequences[i].made = 0
    s.sequences[i].new = 0
    s.sequences[i].held = 0
    s.sequences[i].began_ms = -1.0
    s.sequences[i].first_ms = -1.0


@part
def pages_of(s: EngineState, w: int, tokens: int) -> int:
    """Return the pages that hold ``tokens``."""
    page = s.iterators[w].page_tokens
    return int((tokens + page - 1) // page)


@part
def leave_replica(s: EngineState, r: int) -> None:
    """Take note that a request that was given to replica ``r`` is there no more."""
    s.replicas[r].given -= 1
    s.servers[s.replicas[r].server].ticks -= int(s.curves[s.replicas[r].curve + 1].ticks)


@part
def join_sequences(s: EngineState, r: int, i: int, now: float) -> None:
    """Let request ``i`` wait at replica ``r``; one that all pages together cannot hold is dropped.

    The last token of an answer is never read again, so it is not cached.
    """
    w = s.replicas[r].iterator
    if pages_of(s, w, s.sequences[i].prompt + s.sequences[i].answer - 1) > s.iterators[w].pages:
        leave_replica(s, r)
        drop(s, i, s.replicas[r].model)
        return
    if s.replicas[r].waiting == 0:
        s.replicas[r].head = i
    else:
        s.requests[s.replicas[r].tail].next = i
    s.replicas[r].tail = i
    s.replicas[r].waiting += 1
    if s.iterators[w].busy == 0:
        iterate(s, r, now)


@part
def iterate(s: EngineState, r: int, now: float) -> None:
    """Begin the next iteration of replica ``r``, whose last one is over, where there is anything to do."""
    w = s.replicas[r].iterator
    i = s.iterators[w].head
    while i >= 0:
        s.sequences[i].new = 0
        i = s.requests[i].next
    budget = s.iterators[w].budget_tokens
    if s.iterators[w].chunked == 1:
        left = go_on(s, r, w, budget)
        if left > 0:
            admit(s, r, w, left, now)
    elif not admit(s, r, w, budget, now):
        go_on(s, r, w, budget)
    if s.iterators[w].count == 0:
        return
    s.iterators[w].busy = 1
    s.iterators[w].since_ms = now
    order = s.loop.order
    s.loop.order = order + 1
    takes = iteration_ms(s, w) * s.replicas[r].factor
    push_event(s, now + takes, codes.ITERATED, order, r)


@part
def go_on(s: EngineState, r: int, w: int, budget: int) -> int:
    """Give sequences that hold pages their new tokens, in order of admission.

    Returns what is left of ``budget``; 0 where one was preempted, for then none is admitted.
    """
    i = s.iterators[w].head
    preempted = False
    while i >= 0:
        known = s.sequences[i].prompt + s.sequences[i].made
        new = min(known - s.sequences[i].cached, budget)
        lacking = pages_of(s, w, s.sequences[i].cached + new) - s.sequences[i].held
        itself = False
        while lacking > s.iterators[w].free and not itself:
            itself = s.iterators[w].tail == i
            preempt(s, r, w)
            preempted = True
        if itself:
            break
        if lacking > 0:
            s.sequences[i].held += lacking
            s.iterators[w].free -= lacking
        s.sequences[i].new = new
        budget -= new
        i = s.requests[i].next
    return 0 if preempted else int(budget)


@part
def preempt(s: EngineState, r: int, w: int) -> None:
    """Take the pages of the sequence that was admitted last; it waits before all others."""
    i = s.iterators[w].tail
    unlink(s, w, i)
    s.sequences[i].cached = 0
    if s.replicas[r].waiting == 0:
        s.replicas[r].tail = i
        s.requests[i].next = -1
    else:
        s.requests[i].next = s.replicas[r].head
    s.replicas[r].head = i
    s.replicas[r].waiting += 1
    s.models[s.replicas[r].model].preempted += 1


@part
def unlink(s: EngineState, w: int, i: int) -> None:
    """Take sequence ``i`` out of those that hold pages, and free its own."""
    before = s.sequences[i].before
    following = s.requests[i].next
    if before < 0:
        s.iterators[w].head = following
    else:
        s.requests[before].next = following
    if following < 0:
        s.iterators[w].tail = before
    else:
        s.sequences[following].before = before
    s.requests[i].next = -1
    s.iterators[w].count -= 1
    s.iterators[w].free += s.sequences[i].held
    s.sequences[i].held = 0


@part
def admit(s: EngineState, r: int, w: int, budget: int, now: float) -> bool:
    """Admit requests that wait, in order, while pages for all their known tokens are free and ``budget`` lasts.

    Where prompts go whole, one that is longer than the budget goes alone. Returns whether any was admitted.
    """
    count = 0
    while s.replicas[r].waiting > 0 and s.iterators[w].count < s.iterators[w].most_sequences and budget > 0:
        i = s.replicas[r].head
        known = s.sequences[i].prompt + s.sequences[i].made
        pages = pages_of(s, w, known)
        if pages > s.iterators[w].free:
            break
        new = known
        if new > budget:
            if s.iterators[w].chunked == 1:
                new = budget
            elif count > 0:
                break
        s.replicas[r].head = s.requests[i].next
        s.replicas[r].waiting -= 1
        append(s, w, i)
        s.iterators[w].free -= pages
        s.sequences[i].held = pages
        s.sequences[i].new = new
        if s.sequences[i].began_ms < 0.0:
            s.sequences[i].began_ms = now
        budget -= new
        count += 1
    return count > 0


@part
def append(s: EngineState, w: int, i: int) -> None:
    """Put sequence ``i`` behind those that hold pages."""
    last = s.iterators[w].tail
    s.sequences[i].before = last
    s.requests[i].next = -1
    if last < 0:
        s.iterators[w].head = i
    else:
        s.requests[last].next = i
    s.iterators[w].tail = i
    s.iterators[w].count += 1


@part
def iteration_ms(s: EngineState, w: int) -> float:
    """Return how long the iteration takes: :meth:`gkestimator.llm.steps.StepLaw.iteration_ms` of what is new in it."""
    prompts = 0
    fresh = 0
    decoding = 0
    cached = 0
    beyond = 0.0
    i = s.iterators[w].head
    while i >= 0:
        new = s.sequences[i].new
        before = s.sequences[i].cached
        if new == 1 and before > 0:
            decoding += 1
            cached += before
        elif new > 0:
            prompts += 1
            fresh += new
            if before > 0:
                through = prompt_ms(s, w, 1.0, float(before + new)) - prompt_ms(s, w, 1.0, float(before))
                beyond += max(0.0, through - prompt_ms(s, w, 1.0, float(new)))
        i = s.requests[i].next
    takes = 0.0
    if prompts > 0:
        takes = prompt_ms(s, w, float(prompts), fresh / prompts) + beyond
    if decoding > 0:
        takes = max(0.0, takes - s.iterators[w].least_ms) + step_ms(s, w, float(decoding), cached / decoding)
    return float(takes)


@part
def prompt_ms(s: EngineState, w: int, prompts: float, tokens: float) -> float:
    """Return the time of a pass over ``prompts`` of ``tokens`` each."""
    batches = s.iterators[w].batches
    columns = s.iterators[w].prompts
    rows_at = s.iterators[w].law
    values_at = rows_at + batches + columns + s.iterators[w].contexts
    return between(s.laws, rows_at, batches, rows_at + batches, columns, values_at, prompts, tokens)


@part
def step_ms(s: EngineState, w: int, sequences: float, context: float) -> float:
    """Return the time of a step of ``sequences`` with ``context`` cached tokens each."""
    batches = s.iterators[w].batches
    prompts = s.iterators[w].prompts
    columns = s.iterators[w].contexts
    rows_at = s.iterators[w].law
    columns_at = rows_at + batches + prompts
    values_at = columns_at + columns + batches * prompts
    return between(s.laws, rows_at, batches, columns_at, columns, values_at, sequences, context)


@part
def between(
    laws: Floats,
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
def place(laws: Floats, first: int, count: int, value: float) -> tuple[int, float]:
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
