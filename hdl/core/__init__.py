"""The core: what fetches and issues bundles, and what joins the units."""
