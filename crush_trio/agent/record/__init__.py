"""The stored record of runs: messages, journal, recovery, and the event tail for late readers."""
