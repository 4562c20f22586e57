"""Collectives over all chips of a pod. Each is a program that has all cores to itself."""
