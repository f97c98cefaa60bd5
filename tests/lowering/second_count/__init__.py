"""Hold every operator's FLOPs and host calls to a count from a second, independent source."""
