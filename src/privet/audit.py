"""Audits: attacks on a mechanism that give a lower bound on its epsilon."""

from __future__ import annotations

from privet.attacks.audit_claim import AuditFinding
from privet.attacks.canary_attacks import GradientAttack, LossAttack
from privet.attacks.canary_audit import CanaryAudit, Coins, sharpened
from privet.attacks.one_run_audit import OneRunAudit

__all__ = [
    "AuditFinding",
    "CanaryAudit",
    "Coins",
    "GradientAttack",
    "LossAttack",
    "OneRunAudit",
    "sharpened",
]
