"""Tests of pods that several ranks simulate."""
