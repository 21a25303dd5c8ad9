"""Terminal input and output: keys, lines, dialogs, signals. Knows no command and no report."""
