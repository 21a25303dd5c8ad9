"""What a server hosts: its backend, its place in a cluster, and the workspaces that it opens again."""
