"""The far side of the process boundary. Standard library and numpy only, Python 3.8 and later."""
