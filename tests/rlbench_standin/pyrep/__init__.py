"""A stand-in for PyRep: the few names that the adapter touches."""
