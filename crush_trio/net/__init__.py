"""Network addresses, connections and the HTTP client that the whole package shares."""
