"""Profiling: from a plan of operators and whole models to tables of what this machine's GPU did.

``sweep`` plans; ``executors`` run one operator at a time in a killable child; ``collectors`` put a profiler around
the child; ``parsers`` read what profilers write; ``running`` works a plan off, chunk by chunk, resumably;
``building`` reads what it left and makes the dataset of operators, its lowering table and its report; ``tabling``
makes, of what ``building`` read, the requirement table of whole models; ``colocating`` measures whole models side by
side. The data between them: :mod:`plan`, :mod:`records`, :mod:`captures`, :mod:`raw`.
"""
