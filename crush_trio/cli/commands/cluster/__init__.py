"""The command about the servers that share a database."""
