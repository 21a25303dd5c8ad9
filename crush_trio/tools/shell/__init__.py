"""Commands: the bash tool, background jobs, processes, and the judge of what may run unasked."""
