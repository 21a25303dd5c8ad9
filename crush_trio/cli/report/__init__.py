"""How a run and a session are shown."""
