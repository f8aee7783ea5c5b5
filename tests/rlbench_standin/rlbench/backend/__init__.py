"""A stand-in for rlbench.backend."""
