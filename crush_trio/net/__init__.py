"""The HTTP client that the whole package shares, and what it is made of.

`http1` is the protocol without I/O, `client` the connection pool on Trio streams, `dial` and `proxy` how
streams are opened, `encoding` compressed bodies, `sse` event streams, `address` addresses and URLs.
"""
