"""Place models as gpulet does (USENIX ATC 2022)."""
