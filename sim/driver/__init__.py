"""The host's driver: `Device`, its memory, and the backends behind it."""
