"""Isolation of examples: rules that follow where the examples of a batch lie through every operation of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.isolation.prove import prove as prove_isolation
    from privet.isolation.watch import Check as Check
    from privet.isolation.watch import Waiver as Waiver

    __all__ = ["prove_isolation"]  # no redundant alias says that this one is public
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.isolation.prove": ("prove as prove_isolation",),
            "privet.isolation.watch": ("Check", "Waiver"),
        },
    )
