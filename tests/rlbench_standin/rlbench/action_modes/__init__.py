"""A stand-in for rlbench.action_modes."""
