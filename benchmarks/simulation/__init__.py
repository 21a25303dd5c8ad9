"""A whole cluster simulated in one process: real servers on one store in memory, virtual time, faults from a seed.

`world` plays one seed; `process` is one start of a node, `link` its way to the store, `network` its way to
clients and other nodes; `database` watches what is written, `faults` is what goes wrong, `workload` what
clients do, and `promises` what must be true in the end. `bugs` has bugs that the simulation must find.
"""
