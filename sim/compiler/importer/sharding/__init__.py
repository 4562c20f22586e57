"""Programs for two devices: their shards, collectives, and the division of global programs."""
