"""Importer: converts StableHLO to the graph. Needs jaxlib's bindings (the extra ``jax``)."""
