"""The golden torus: chips that are joined by links, and the ways of packets."""
