"""Traces: probes in the RTL, the recorder of their records, and summaries."""
