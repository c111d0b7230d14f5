"""Holds results and gradients against float64 (docs/certify.md)."""
