"""Random programs for a core: legal bundles of all slots, generated along the path of execution.

The generator runs a golden core. A bundle is generated when execution first reaches its address. So
it is legal in that state: addresses in range, pops only of results under way, large enough
semaphores. When a loop executes a bundle again, the state may differ, so the bundle may even have a
fault.

A program ends with a halt, or with a bundle that has a fault; the faults take turns.
"""
