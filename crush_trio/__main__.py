"""`python -m crush_trio` is `crush-trio`."""

import sys

from crush_trio.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
