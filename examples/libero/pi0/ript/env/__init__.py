"""Runners: a policy in many environments."""
