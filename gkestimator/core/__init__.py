"""Hold what every other part stands on."""
