"""Place models as USHER does (OSDI 2024)."""
