"""Shell commands: the tools, background jobs, processes and their guard, and the command judge."""
