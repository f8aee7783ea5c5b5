"""A stand-in for PyRep: the few names that the adapter and the documents touch."""


class PyRep:
    """One CoppeliaSim; the stand-in's is in rlbench.world."""
