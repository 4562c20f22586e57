"""Tests of the chip and its registers."""
