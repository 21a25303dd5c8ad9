"""Scenarios for public packages: what they promise, run under every order and with every cancellation.

The packages are not dependencies of this project; each module says which one it needs. Run them in a
virtual environment of their own, in which this project is installed as well:

pip install httpcore anyio tricycle trio-util aioresult trio-websocket
python -m benchmarks.races.packages [package …]
"""
