"""LIBERO on robosuite 1.4: ``libero/libero_object/0``."""
