"""The tools `view`, `edit`, `multiedit` and `write`, and how files are read, matched and replaced."""
