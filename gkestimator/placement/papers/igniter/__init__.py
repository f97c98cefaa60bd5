"""Place models as iGniter does (TPDS 2023)."""
