"""Random programs for a core: legal bundles of all slots, generated along the path of execution.

The generator runs a golden core. It generates a bundle when execution first reaches the bundle's
address, and so knows which operations are legal in that state: addresses are in range, the array
has a result for each pop, semaphores have the values for which waits wait. When a loop executes a
bundle again, the state may differ, and the bundle may even have a fault.

A program ends with a halt, or with a bundle that has a fault; all faults are equally frequent.
"""
