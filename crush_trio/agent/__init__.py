"""The agent of a workspace: the coordinator, the turns of runs, their stored record, and asks."""
