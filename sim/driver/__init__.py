"""The host's driver: `Device`, its parts, and the backends behind it."""
