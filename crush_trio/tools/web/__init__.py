"""Web tools: fetch and download."""
