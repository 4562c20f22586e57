"""Tests of the simulation, the compiler and the driver."""
