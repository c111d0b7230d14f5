"""PyTorch's own operator samples (`op_db`), run through Fusewright and judged against eager (docs/judge.md)."""
