"""The Ray Serve application that `gkest export --to ray-serve` copies beside its configuration, as it stands.

``worker.py`` runs models and forms batches; ``app.py`` puts it into Ray Serve. `gkest serve` uses the same worker.
"""
