"""The secrets that a workspace knows, and the environment of commands without them."""
