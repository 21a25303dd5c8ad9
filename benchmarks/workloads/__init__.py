"""The workloads for whole servers, one module each: (a) to (j)."""
