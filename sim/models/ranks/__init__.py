"""The processes of a pod that is simulated by several: ranks of MPI."""
