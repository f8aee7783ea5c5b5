"""From episodes to what a policy should do more of: pure maths, no environments, no optimiser."""
