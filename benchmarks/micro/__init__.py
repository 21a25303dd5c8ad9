"""Micro benchmarks: the cost of single parts, one module each.

`python -m benchmarks --micro` runs all of them. They need no server and no baseline: each compares
a part with itself, at two sizes or in two ways.
"""
