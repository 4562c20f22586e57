"""Programs for several devices: shards of values, collectives, and partition of global programs."""
