"""The names of a comparison's arms, in the order in which they are shown."""

from __future__ import annotations

NON_PRIVATE = "non-private"
LOCAL = "local"
SCALED = "local + temperature"
GLOBAL = "global"
MIXED = "mixed"
AUTOMATIC = "automatic"
ARMS = (NON_PRIVATE, LOCAL, SCALED, GLOBAL, MIXED, AUTOMATIC)
