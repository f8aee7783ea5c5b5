"""A stand-in for pyrep.backend."""
