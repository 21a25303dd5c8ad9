"""The built-in tools; the description of each for the model is the file `<tool>.md` beside its module.

`base` says what a tool is, `workbench` what the tools of a workspace share. `files/`, `search/`, `shell/`
and `web/` have the tools by subject; `todos` and `info` are tools about the session and the server.
"""
