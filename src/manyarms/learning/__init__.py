"""From episodes to better weights: samples, optimiser, checkpoints."""
