"""A check in a process of its own: ``python -m manyarms.doctor <open file> <check>`` writes findings as JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from manyarms.plugins import import_object

if __name__ == "__main__":
    check = json.loads(sys.argv[2])
    findings = import_object(check["function"])(**check["arguments"])
    with os.fdopen(int(sys.argv[1]), "w") as answer:
        json.dump([asdict(finding) for finding in findings], answer)
