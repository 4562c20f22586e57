"""Tests of the links between chips, and of the router."""
