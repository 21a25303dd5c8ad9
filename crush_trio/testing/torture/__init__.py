"""The torture kit: checks the promises of any server of the wire, and prints a verdict for each.

`python -m crush_trio.testing.torture --url http://127.0.0.1:8765 --profile native`. docs/torture.md
describes promises, options and verdicts.
"""
