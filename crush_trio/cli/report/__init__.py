"""How runs and sessions are shown: on a terminal, as plain text, and as JSON."""
