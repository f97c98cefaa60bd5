"""The largest block that two weights have in common, at any offset."""
