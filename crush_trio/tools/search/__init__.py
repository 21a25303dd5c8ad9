"""The tools `glob`, `ls` and `grep`, path patterns, the directory walk, and running ripgrep."""
