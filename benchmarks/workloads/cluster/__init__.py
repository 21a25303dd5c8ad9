"""Workloads on a shared PostgreSQL, which each of them starts for itself."""
