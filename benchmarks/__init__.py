"""Benchmarks: the server compared with a baseline, as ratios from one run.

`python -m benchmarks` measures whole servers over HTTP, alternating between this one and a
baseline; `python -m benchmarks --micro` measures single parts. docs/performance.md has the figures
and how to read them.
"""
