"""Compare policies x workloads x clusters x SLO scales in one table."""
