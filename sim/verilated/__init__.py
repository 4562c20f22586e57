"""Verilator builds: the tools, the build, its cache, and models that run in this process."""
