"""The core: fetch and issue of bundles, and the connections between the units."""
