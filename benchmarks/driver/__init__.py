"""The driver: starts servers, sends requests, reads streams, and serves the scripted model."""
