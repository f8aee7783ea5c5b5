"""A page on a run, while it goes on and afterwards."""
