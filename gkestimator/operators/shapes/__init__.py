"""Hold the shape rules, one file per family."""
