"""Whether this machine can run manyarms and its simulators, and the command that mends what cannot."""
