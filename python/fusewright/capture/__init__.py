"""From a model to regions of the core: Dynamo's graph, made functional, partitioned and imported (docs/capture.md)."""
