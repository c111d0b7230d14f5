"""Writes one page about a model (docs/report.md)."""
