"""Terminal input and output; knows no command."""
