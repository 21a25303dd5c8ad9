"""This server among others on one store: requests to the node that runs a workspace, and answers of all nodes."""
