"""The processes (ranks of MPI) that simulate a pod together."""
