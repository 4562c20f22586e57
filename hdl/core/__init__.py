"""The core: fetches and issues bundles, and connects the units."""
