"""A module that starts a thread when imported: nothing may be forked after that."""

from __future__ import annotations

import threading
import time

from standins import Sleeper

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

__all__ = ["Sleeper"]
