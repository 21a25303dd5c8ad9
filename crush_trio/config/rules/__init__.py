"""Permission rules: the patterns of commands, paths and hosts, and the rules of a configuration."""
