"""The audit: an append-only record of who did what on the user's servers.

`record` has the values, `file` the files and their rotation, `log` the queue that a server writes
through.
"""
