"""Measures how fast a model is, beside eager and torch.compile (docs/bench.md)."""
