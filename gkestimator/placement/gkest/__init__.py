"""Hold the project's own policy."""
