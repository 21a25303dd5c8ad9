"""The `crush-trio` command line."""
