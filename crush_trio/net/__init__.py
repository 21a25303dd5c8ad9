"""The HTTP client that the whole package shares, and what it is made of.

`client` is the connection pool on Trio streams, `http1` the protocol and compressed bodies without I/O,
`dial` how streams are opened (TCP, Unix sockets, TLS, proxies), `sse` the decoder of event streams,
`address` addresses and URLs, `errors` the network errors.
"""
