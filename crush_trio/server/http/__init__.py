"""HTTP/1.1 connections and sockets, and the Hypercorn deployment."""
