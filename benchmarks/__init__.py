"""Questions about cost, each answered by one module. `python -m benchmarks` asks them all."""
