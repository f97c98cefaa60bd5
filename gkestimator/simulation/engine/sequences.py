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
    source = s.sources[x]
    sequence = s.sequences[i]
    lengths = s.lengths[source.length + source.came % source.lengths]
    source.came += 1
    sequence.prompt = lengths.prompt
    sequence.answer = lengths.answer
    sequence.cached = 0
    sequence.made = 0
    sequence.new = 0
    sequence.held = 0
    sequence.began_ms = -1.0
    sequence.first_ms = -1.0


@part
def pages_of(s: EngineState, w: int, tokens: int) -> int:
    """Return the pages that hold ``tokens``."""
    page = s.iterators[w].page_tokens
    return int((tokens + page - 1) // page)


@part
def leave_replica(s: EngineState, r: int) -> None:
    """Take note that a request that was given to replica ``r`` is there no more."""
    replica = s.replicas[r]
    replica.given -= 1
    s.servers[replica.server].ticks -= int(s.curves[replica.curve + 1].ticks)


@part
def join_sequences(s: EngineState, r: int, i: int, now: float) -> None:
    """Let request ``i`` wait at replica ``r``; one that all pages together cannot hold is dropped.

    The last token of an answer is never read again, so it is not cached.
    """
    sequence = s.sequences[i]
    replica = s.replicas[r]
    w = replica.iterator
    iterator = s.iterators[w]
    if pages_of(s, w, sequence.prompt + sequence.answer - 1) > iterator.pages:
        leave_replica(s, r)
        drop(s, i, replica.model)
        return
    if replica.waiting == 0:
        replica.head = i
    else:
        s.requests[replica.tail].next = i
    replica.tail = i
    replica.waiting += 1
    if iterator.busy == 0:
        iterate(s, r, now)


@part
def iterate(s: EngineState, r: int, now: float) -> None:
    """Begin the next iteration of replica ``r``, whose last one is over, where there is anything to do."""
    replica = s.replicas[r]
    w = replica.iterator
    iterator = s.iterators[w]
    i = iterator.head
    while i >= 0:
        s.sequences[i].new = 0
        i = s.requests[i].next
    budget = iterator.budget_tokens
    if iterator.chunked == 1:
        left = go_on(s, r, w, budget)
        if left > 0:
            admit(s, r, w, left, now)
    elif not admit(s, r, w, budget, now):
        go_on(s, r, w, budget)
    if iterator.count == 0:
        return
    iterator.busy = 1
    iterator.since_ms = now
    order = s.loop.order
    s.loop.order = order + 1
    takes = iteration_ms(s, w) * replica.factor
    push_event(s, now + takes, codes.ITERATED, order, r)


@part
def go_on(s: EngineState, r: int, w: int, budget: int) -> int:
    """Give sequences that hold pages their new tokens, in order of admission.

    Returns what is left of ``budget``; 0 where one was preempted, for then none is admitted.
    """
    iterator = s.iterators[w]
    i = iterator.head
    preempted = False
    while i >= 0:
        sequence = s.sequences[i]
        known = sequence.prompt + sequence.made
        new = min(known - sequence.cached, budget)
        lacking = pages_of(s, w, sequence.cached + new) - sequence.held
        itself = False
        while lacking > iterator.free and not itself:
            itself = iterator.tail == i
            preempt(s, r, w)
            preempted = True
        if itself:
            break
        if lacking > 0:
            sequence.held += lacking
            iterator.free -= lacking
        sequence.new = new
        budget -= new
        i = s.requests[i].next
    return 0 if preempted else budget


@part
def preempt(s: EngineState, r: int, w: int) -> None:
    """Take the pages of the sequence that was admitted last; it waits before all others."""
    replica = s.replicas[r]
    i = s.iterators[w].tail
    request = s.requests[i]
    unlink(s, w, i)
    s.sequences[i].cached = 0
    if replica.waiting == 0:
        replica.tail = i
        request.next = -1
    else:
        request.next = replica.head
    replica.head = i
    replica.waiting += 1
    s.models[replica.model].preempted += 1


@part
def unlink(s: EngineState, w: int, i: int) -> None:
    """Take sequence ``i`` out of those that hold pages, and free its own."""
    request = s.requests[i]
    sequence = s.sequences[i]
    iterator = s.iterators[w]
    before = sequence.before
    following = request.next
    if before < 0:
        iterator.head = following
    else:
        s.requests[before].next = following
    if following < 0:
        iterator.tail = before
    else:
        s.sequences[following].before = before
    request.next = -1
    iterator.count -= 1
    iterator.free += sequence.held
    sequence.held = 0


@part
def admit(s: EngineState, r: int, w: int, budget: int, now: float) -> bool:
    """Admit requests that wait, in order, while pages for all their known tokens are free and ``budget`` lasts.

    Where prompts go whole, one that is longer than the budget goes alone. Returns whether any was admitted.
    """
    replica = s.replicas[r]
    iterator = s.iterators[w]
    count = 0
    while replica.waiting > 0 and iterator.count < iterator.most_sequences and budget > 0:
        i = replica.head
        sequence = s.sequences[i]
        known = sequence.prompt + sequence.made
        pages = pages_of(s, w, known)
        if pages > iterator.free:
            break
        new = known
        if new > budget:
            if iterator.chunked == 1:
                new = budget
            elif count > 0:
                break
        replica.head = s.requests[i].next
        replica.waiting -= 1
        append(s, w, i)
        iterator.free -= pages
        sequence.held = pages
        sequence.new = new
        if sequence.began_ms < 0.0:
            sequence.began_ms = now
        budget -= new
        count += 1
    return count > 0


@part
def append(s: EngineState, w: int, i: int) -> None:
    """Put sequence ``i`` behind those that hold pages."""
    iterator = s.iterators[w]
    last = iterator.tail
    s.sequences[i].before = last
    s.requests[i].next = -1
    if last < 0:
        iterator.head = i
    else:
        s.requests[last].next = i
    iterator.tail = i
    iterator.count += 1


@part
def iteration_ms(s: EngineState, w: int) -> float:
    """Return how long the iteration takes: :meth:`gkestimator.llm.steps.StepLaw.iteration_ms` of what is new in it."""
    iterator = s.iterators[w]
    prompts = 0
    fresh = 0
    decoding = 0
    cached = 0
    beyond = 0.0
    i = iterator.head
    while i >= 0:
        sequence = s.sequences[i]
        new = sequence.new
        before = sequence.cached
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
        takes = max(0.0, takes - iterator.least_ms) + step_ms(s, w, float(decoding), cached / decoding)
    return float(takes)


@part
def prompt_ms(s: EngineState, w: int, prompts: float, tokens: float) -> float:
    """Return the time of a pass over ``prompts`` of ``tokens`` each."""
    iterator = s.iterators[w]
    batches = iterator.batches
    columns = iterator.prompts
    rows_at = iterator.law
    values_at = rows_at + batches + columns + iterator.contexts
    return between(s.laws, rows_at, batches, rows_at + batches, columns, values_at, prompts, tokens)


@part
def step_ms(s: EngineState, w: int, sequences: float, context: float) -> float:
    """Return the time of a step of ``sequences`` with ``context`` cached tokens each."""
    iterator = s.iterators[w]
    batches = iterator.batches
    prompts = iterator.prompts
    columns = iterator.contexts
    rows_at = iterator.law
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
