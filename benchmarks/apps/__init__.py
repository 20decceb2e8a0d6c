"""The programs that are measured. Each reads where it works from BENCH_… variables."""
