"""Pictures of the docs, drawn from the RTL and from the configuration."""
