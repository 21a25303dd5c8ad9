"""Seeded bugs: small programs with one planted concurrency bug each, and what finds it.

`orders` has bugs that need an order of tasks, `endings` bugs that need a cancellation or a deadline.
`table` runs every strategy on every bug; `python -m benchmarks.races` writes the result into
docs/races.md. `packages` has scenarios for packages of other people.
"""
