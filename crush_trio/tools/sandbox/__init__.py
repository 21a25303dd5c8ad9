"""Sandboxes for commands: what a command may touch, and the two mechanisms that enforce it.

`confinement` is the description, `bubblewrap` and `landlock` translate it for their mechanism, `layout`
decides what each path of the file system is, and `probe` finds out which mechanism works here. The part
that runs just before the command's program is in the guard (`tools/shell/guard/restriction.py`).
"""
