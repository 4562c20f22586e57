"""Devices of chips that other ranks simulate."""
