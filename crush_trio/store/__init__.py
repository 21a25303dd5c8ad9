"""A workspace's durable tables, and what can go wrong with them.

`errors` holds for every store; `sqlite` is the embedded one that needs no server.
"""
