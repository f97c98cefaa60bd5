"""Say how far estimates are from measurements: metrics, splits of training rows, and what to compare with."""
