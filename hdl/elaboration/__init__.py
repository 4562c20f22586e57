"""Amaranth's elaboration."""
