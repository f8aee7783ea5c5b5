"""Reinforcement learning with sparse rewards, as RIPT-VLA does it."""
