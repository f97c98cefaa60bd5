"""Show what the project does on real data: every program here is listed in docs/appendix/benchmarks.md."""
