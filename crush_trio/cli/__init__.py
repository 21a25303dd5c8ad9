"""The command line: arguments in, exit codes out. It imports every layer but `testing`."""
