"""Serve one language model's replica by iterations, written down as simply as it can be: what the engine is checked by.

Plain objects in lists; pages are counted anew from the sequences that hold them whenever they are asked for. It shares
nothing with the engine but the description of a replica, and asks the step law itself for times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gkestimator.simulation.system import SimIterating


@dataclass(eq=False)
class Asked:
    """One request: what is known of it, and what came of it."""

    arrived: float
    prompt: int
    answer: int
    cached: int = 0
    made: int = 0
    new: int = 0
    reserved: int = 0  # tokens that pages were taken for
    began: float | None = None
    first: float | None = None
    ended: float | None = None
    dropped: bool = False

    @property
    def known(self) -> int:
        return self.prompt + self.made


class Replica:
    """One replica, from its first request to its last answer."""

    def __init__(self, what: SimIterating) -> None:
        self.what = what
        self.waiting: list[Asked] = []
        self.running: list[Asked] = []
        self.preempted = 0
        self.iterations = 0

    def serve(self, requests: Sequence[tuple[float, int, int]]) -> list[Asked]:
        """Serve (arrival, prompt, answer), ascending in time; at one time an iteration ends before a request comes."""
        sequences = [Asked(*request) for request in requests]
        coming = list(sequences)
        now = 0.0
        ends: float | None = None
        while coming or ends is not None:
            if ends is not None and (not coming or ends <= coming[0].arrived):
                now = ends
                self._end(now)
                ends = self._begin(now)
            else:
                came = coming.pop(0)
                now = came.arrived
                if self._pages(came.prompt + came.answer - 1) > self.what.pages:
                    came.dropped = True
                    continue
                self.waiting.append(came)
                if ends is None:
                    ends = self._begin(now)
        return sequences

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.what.page_tokens)

    def _free(self) -> int:
        return self.what.pages - sum(self._pages(s.reserved) for s in self.running)

    def _begin(self, now: float) -> float | None:
        for s in self.running:
            s.new = 0
        if self.what.chunked:
            left, preempted = self._go_on(self.what.budget_tokens)
            if not preempted:
                self._admit(left, now)
        elif not self._admit(self.what.budget_tokens, now):
            self._go_on(self.what.budget_tokens)
        if not self.running:
            return None
        prompts = []
        cached = []
        for s in self.running:
            if s.new == 1 and s.cached:
                cached.append(s.cached)
            elif s.new:
                prompts.append((s.cached, s.new))
        return now + self.what.law.iteration_ms(prompts, cached)

    def _go_on(self, budget: int) -> tuple[int, bool]:
        preempted = False
        for s in list(self.running):
            if s not in self.running:
                break
            new = min(s.known - s.cached, budget)
            while s in self.running:
                needed = self._pages(max(s.reserved, s.cached + new)) - self._pages(s.reserved)
                if needed <= self._free():
                    s.reserved = max(s.reserved, s.cached + new)
                    s.new = new
                    budget -= new
                    break
                youngest = self.running.pop()
                youngest.cached = youngest.reserved = youngest.new = 0
                self.waiting.insert(0, youngest)
                self.preempted += 1
                preempted = True
        return budget, preempted

    def _admit(self, budget: int, now: float) -> bool:
        admitted = 0
        while self.waiting and len(self.running) < self.what.most_sequences and budget > 0:
            s = self.waiting[0]
            if self._pages(s.known) > self._free():
                break
            if s.known > budget and not self.what.chunked and admitted:
                break
            s.new = min(s.known, budget) if self.what.chunked else s.known
            s.reserved = s.known
            budget -= s.new
            self.running.append(self.waiting.pop(0))
            if s.began is None:
                s.began = now
            admitted += 1
        return admitted > 0

    def _end(self, now: float) -> None:
        self.iterations += 1
        for s in list(self.running):
            s.cached += s.new
            if s.new and s.cached == s.known:
                s.made += 1
                if s.made == 1:
                    s.first = now
                if s.made == s.answer:
                    s.ended = now
                    self.running.remove(s)
