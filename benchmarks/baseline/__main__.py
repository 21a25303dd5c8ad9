"""`python -m benchmarks.baseline --port 8000`: serve until a signal."""

import argparse

import uvicorn

from benchmarks.baseline.app import create_app


def main() -> None:
    """Serve on loopback, as fast as uvicorn can: uvloop, httptools, no access log."""
    parser = argparse.ArgumentParser(prog="benchmarks.baseline")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--paced", action="store_true", help="wait 33 ms between events of an answer"
    )
    options = parser.parse_args()
    uvicorn.run(
        create_app(paced=options.paced),
        port=options.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
