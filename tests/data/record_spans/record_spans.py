"""A collector as a third party would write it. The tests install it beside a real ``entry_points.txt``.

It keeps the times that the child itself recorded of every entry. ``LyingSpans`` adds kernels that no CPU has run.
"""

import json

from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.collectors import Collector
from gkestimator.profiling.records import read_records


class RecordSpans(Collector):
    name = "record-spans"
    summary = "Begin and end of every entry, by the child's own records."
    passes = ("timeline",)
    file = "spans.json"
    suffixes = (".json",)
    probed = False

    def unavailable(self):
        return None

    def version(self):
        return "1.0"

    def command(self, child, folder):
        return list(child)

    def finish(self, folder, entries, log):
        records = [r for r in read_records(folder / "records.jsonl") if r.entry_id in entries]
        spans = [[r.entry_id, r.repeats, r.started_unix_ns, r.ended_unix_ns] for r in records]
        (folder / self.file).write_text(json.dumps(spans))
        return (self.file,)

    @staticmethod
    def parse(path):
        spans = json.loads(path.read_text())
        ranges = tuple(
            EntryRange(entry_id=i, repeats=n, start_ns=start, end_ns=end, launches=())
            for i, n, start, end in spans
        )
        return Capture(tool="record-spans", tool_version=None, schema=None, ranges=ranges)


class LyingSpans(RecordSpans):
    name = "lying-spans"

    @staticmethod
    def parse(path):
        spans = json.loads(path.read_text())
        ranges = tuple(
            EntryRange(
                entry_id=i,
                repeats=n,
                start_ns=start,
                end_ns=end,
                launches=(CapturedLaunch(kind="kernel", name="invented", start_ns=start, duration_ns=5_000),)
                * n,
            )
            for i, n, start, end in spans
        )
        return Capture(tool="lying-spans", tool_version=None, schema=None, ranges=ranges)
