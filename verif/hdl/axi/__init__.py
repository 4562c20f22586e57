"""Tests of the AXI masters and the AXI4-Lite slave."""
