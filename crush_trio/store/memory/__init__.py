"""The in-memory store: for tests and for programs that keep nothing."""
