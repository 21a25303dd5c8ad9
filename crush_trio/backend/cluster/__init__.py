"""Many servers on one shared store: this server as a node, its leases, and who runs which workspace."""
