"""BEHAVIOR-1K on OmniGibson and Isaac Sim: ``behavior/turning_on_radio``."""
