"""Soak test: checks every promise of the server under load and faults for minutes.

`python -m benchmarks.soak` starts a real server and a model of its own, and mixes prompts, cancels,
queue edits, slow and vanishing readers, a full disk, a held database, kills and restarts. What the
server answers, streams, asks the model and leaves on disk is checked against each other all the
time and once more at the end. docs/testing.md says what is checked.
"""
