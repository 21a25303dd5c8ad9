"""Chaos test of a cluster: three nodes, a real PostgreSQL, clients on any node, and faults.

`python -m benchmarks.chaos` plays rounds. In each, clients send prompts and read answers through nodes that
they choose at random, one fault happens in the middle, and every promise is checked afterwards: against the
rows, against what every reader was told, and against what the model was asked. docs/testing.md lists the
scenarios and the promises.
"""
