"""Verilator builds: the tools, the build, its cache, and a built model in process."""
