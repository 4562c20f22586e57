"""Transfers between the memories: descriptors, the queue, and the engine that moves rows."""
