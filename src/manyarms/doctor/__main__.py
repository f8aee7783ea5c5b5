"""A check in a process of its own: ``python -m manyarms.doctor <file> <check>``; rows go to the open file, as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict

if __name__ == "__main__":
    check = json.loads(sys.argv[2])
    module, _, function = check["function"].partition(":")
    rows = getattr(importlib.import_module(module), function)(**check["arguments"])
    with os.fdopen(int(sys.argv[1]), "w") as answer:
        json.dump([asdict(row) for row in rows], answer)
