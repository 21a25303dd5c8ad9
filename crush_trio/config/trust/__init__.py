"""Trust: what the files of an untrusted project want, and what the user answered to that."""
