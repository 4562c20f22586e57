"""Reuse of emitted code for machine code that differs from earlier code only in addresses."""
