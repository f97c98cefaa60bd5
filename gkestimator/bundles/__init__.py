"""Hold what was learned: the shipped bundle, measured bundles, corrections, and their files."""
