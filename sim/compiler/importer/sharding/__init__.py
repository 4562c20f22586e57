"""Programs for two devices: shards of values, collectives, and partition of global programs."""
