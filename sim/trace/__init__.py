"""Traces of a chip: probes in the RTL, the writer of trace files, and summaries."""
