"""The guard program for one command: `python -I -S __main__.py <socket> <grace>`.

The packages above this folder are not imported, because that takes longer than most commands run. An
empty module takes the place of this package, so that its modules are found, with their cached bytecode,
and no other module of crush_trio can be imported.
"""

import os
import sys
from types import ModuleType

if __name__ == "__main__":
    package = ModuleType("crush_trio.tools.shell.guard")
    package.__path__ = [os.path.dirname(__file__)]  # noqa: PTH120  # pathlib takes its time too
    sys.modules[package.__name__] = package

    from crush_trio.tools.shell.guard.pair import main

    main(channel=int(sys.argv[1]), grace=float(sys.argv[2]))
    os._exit(0)  # skips the interpreter's shutdown: the server waits for the end of this process
