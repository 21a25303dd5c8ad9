"""The program that guards one command: `python -I -S __main__.py <socket> <grace>`.

The packages around this folder are not imported: that takes longer than most commands run. So a
module without content stands for this package; its modules are found, with their bytecode, and
nothing else of ours can be imported.
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
    os._exit(0)  # there is nothing to tidy up, and the server waits for the end of this process
