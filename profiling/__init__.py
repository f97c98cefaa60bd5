"""Profiling: from a plan of operators to a kernel dataset of this machine's GPU.

``sweep`` plans; ``executors`` run one operator at a time in a killable child; ``collectors`` put a profiler around the
child; ``parsers`` read what profilers write; ``running`` works a plan off, chunk by chunk, resumably; ``building``
makes the dataset, its lowering table and its report. The data between them: :mod:`plan`,
:mod:`records`, :mod:`captures`, :mod:`raw`.
"""
