"""Collectives over all chips of a pod, as programs of whole cores."""
