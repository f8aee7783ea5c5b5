"""The words both sides read and write by position. Loads without numpy, which the worker may lack."""

import sys

# Words of `control`: what the main side tells a row.
COMMAND, SEQUENCE, NUM_ACTIONS, PAYLOAD, AUTORESET, CAMERAS, RENDER_EVERY, DONE, STEPS = range(9)
"""The last two are the worker's: the number of the last command it finished, and the running episode's steps so far."""
CONTROL_WORDS = 16

# COMMAND
NOTHING, STEP, RESET, CALL = range(4)

# AUTORESET
DISABLED, NEXT_STEP, SAME_STEP = range(3)

# Words of `status`: what a row answers. Those from INFO_BYTES to REPLY are zero in the usual case.
NUM_STEPS, TERMINATED, TRUNCATED, SUCCESS, INFO_BYTES, INFO_MASK, FINAL_BYTES, FAILED, REPLY = range(9)
FRAMES, WAS_RESET = 9, 10
STATUS_WORDS = 16

# Words of `timings`, in seconds of the clock that all processes share.
STARTED, EXEC, SIM, OBS, VID, TOGGLE, CPU = range(7)
TIMING_WORDS = 8


def status_bytes(num_steps: int = 0) -> bytes:
    """Return the status of a row that has nothing to tell but how many steps it ran."""
    return num_steps.to_bytes(4, sys.byteorder) + bytes(4 * (STATUS_WORDS - 1))
