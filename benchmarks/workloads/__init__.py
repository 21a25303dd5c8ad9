"""The questions that are asked of a whole server, one module each: (a) to (i)."""
