"""What the server costs, against what one would run otherwise, as ratios from one run.

`python -m benchmarks` measures whole servers over HTTP, this one and a baseline by turns;
`python -m benchmarks --micro` measures single parts. docs/performance.md has the figures and how to
read them.
"""
