"""The workspaces of a process, which clients share.

`backend` keeps them, `slot` is the life of one, `claims` which clients hold it; `open` opens a directory as
a `HostedWorkspace` (`workspace`), with what `settings` say.
"""
