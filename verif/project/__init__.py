"""Tests of the project itself: README, docs, packaging."""
