"""The scripted model: its scripts, and how they are played in memory and over HTTP."""
