"""The scripted model, in memory and behind HTTP."""
