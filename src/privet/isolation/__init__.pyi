from privet.isolation.prove import prove as prove_isolation
from privet.isolation.watch import Check as Check
from privet.isolation.watch import Waiver as Waiver

__all__ = ["Check", "Waiver", "prove_isolation"]
