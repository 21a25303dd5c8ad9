"""Search tools: glob, ls, grep."""
