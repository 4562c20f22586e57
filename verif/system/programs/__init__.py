"""Random programs for a core: legal bundles of all slots, generated along the path of execution.

The generator runs a golden core. A bundle is generated when execution first reaches its address, so
it is legal in that state: addresses in range, pops only of results under way, large enough
semaphores. When a loop executes a bundle again, anything may happen, faults included.

A program ends with a halt, or with a bundle that has a fault; the faults take turns.
"""
