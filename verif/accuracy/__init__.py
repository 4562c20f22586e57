"""Errors of elementary and transcendental functions against float64."""
