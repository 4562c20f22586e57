"""Tests of the kernel compiler."""
