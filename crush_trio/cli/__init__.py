"""The `crush-trio` command line: entry point, shared options, exit codes, and the link to a server."""
