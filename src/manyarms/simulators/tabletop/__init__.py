"""The embedded simulator: a Panda-shaped arm at a table in MuJoCo, with RLBench-style tasks, names and units.

Nothing to download and no display to set up. The tasks are written for manyarms; they are like RLBench's, not them.
"""

from ..graphics import set_backend

set_backend()  # MuJoCo reads it when it is first imported
