"""``python -m manyarms`` is ``manyarms``; ``torchrun -m manyarms eval …`` shares the work among ranks."""

from manyarms.cli import main

main()
