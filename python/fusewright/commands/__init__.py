"""The command `fusewright` (docs/cli.md)."""
