"""Questions about the cost of one part, each answered by one module.

`python -m benchmarks --micro` asks them all. They need no server and no baseline: each compares a part
with itself, at two sizes or in two ways.
"""
