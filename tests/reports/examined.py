"""A run's folder with everything in it that a report can show, made up in a second."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from privet.attacks.audit_claim import AuditFinding
from privet.attacks.membership import MembershipScores
from privet.attacks.membership_verdict import AttackLimit, membership_report
from privet.attacks.reconstruction.result import Mean, RebuiltFigures, RebuiltReport
from privet.effects.confidence import calibration_report
from privet.effects.fairness import Attribute, fairness_report
from privet.effects.groups import DecisionDisparity, FairnessReport, SourceRow
from privet.effects.radii import RadiusPoint, RobustnessReport, wilson_interval
from privet.reports.picture_grid import picture_grid
from privet.runs.ledger_check import check_ledger
from privet.runs.resuming import stored_plan
from privet.runs.run_files import RunFiles
from privet.training.predictions import Predictions


def finding(
    *, audit: str = "canaries per run", bound: float = 0.2, rounds: int = 4, noise: float = 1.0
) -> AuditFinding:
    return AuditFinding(
        audit=audit,
        attacker="noisy gradients",
        num_canaries=100,
        num_observations=2000,
        num_rounds=rounds,
        confidence=0.9999,
        delta=1e-3,
        epsilon_bound=bound,
        epsilon_claim=1.0,
        noise_bound=None,
        noise_claim=noise,
        is_broken=bound > 1.0,
    )


def examined(run: Path, folder: Path, *, word: str = "Female", skill: float = 1.0) -> Path:
    """Copy a run and add every examination; ``word`` stands wherever a file may bring a name of its own."""
    shutil.copytree(run, folder)
    files = RunFiles(folder=folder)
    generator = np.random.default_rng(0)
    labels = generator.integers(10, size=400)
    logits = 4 * skill * np.eye(10)[labels] + 2 * generator.normal(size=(400, 10))
    predictions = Predictions.from_logits(logits, labels)
    files.calibration.write_text(json.dumps(calibration_report(predictions, num_resamples=20).to_dict()))
    charged = check_ledger(folder)
    limit = AttackLimit(event=charged.event, adjacency=charged.spent.adjacency)
    attacks = [
        membership_report(
            MembershipScores(
                attack=name, members=generator.normal(size=1000) + 0.1, non_members=generator.normal(size=1000)
            ),
            limit,
        ).to_dict()
        for name in ("loss threshold", word)
    ]
    files.membership.write_text(json.dumps({"attacks": attacks}))
    files.fairness.write_text(json.dumps(_fairness(predictions, word).to_dict()))
    robustness = RobustnessReport(
        norm=f"largest change of {word}",
        num_examples=100,
        num_steps=20,
        num_restarts=2,
        points=tuple(
            RadiusPoint(radius=radius, accuracy=wilson_interval(int(skill * right), 100))
            for radius, right in ((0.0, 90), (0.1, 40))
        ),
    )
    growth = {"measured": 10.0, "from_noise": 5.0}
    files.robustness.write_text(json.dumps({"report": robustness.to_dict(), "growth": growth}))
    findings = [finding(), finding(audit=word)]
    audit = {"recipe": word, "plan": stored_plan(files).hash, "findings": [one.to_dict() for one in findings]}
    files.audit.write_text(json.dumps(audit))
    pictures = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    files.long_tail.write_bytes(picture_grid({"lowest loss": pictures, "highest loss": 1 - pictures}))
    files.reconstruction_pictures.write_bytes(picture_grid({"originals": pictures, "rebuilt": 1 - pictures}))
    mean = Mean.of([0.1 * skill, 0.2 * skill])
    rows = tuple(RebuiltFigures(name=name, mse=mean, psnr=mean, ssim=mean) for name in ("bare", word))
    rebuilt = RebuiltReport(num_images=6, num_steps=20, mask_rate=0.5, noise_std=0.1, rows=rows)
    files.reconstruction.write_text(json.dumps(rebuilt.to_dict()))
    return folder


def _fairness(predictions: Predictions, word: str) -> FairnessReport:
    attribute = Attribute(name=word, group_names=(word, "Male", "nobody"), codes=np.tile([0, 1], 200))
    names = tuple(f"class {number}" for number in range(10))
    report = fairness_report(predictions, class_names=names, attributes=[attribute], num_resamples=20)
    return FairnessReport(
        num_examples=report.num_examples,
        attributes=report.attributes,
        decisions=(DecisionDisparity(attribute=word, demographic_parity=0.2, equalized_odds=0.1, positive_class=word),),
        sources=(
            SourceRow(attribute=word, name=word, share=0.5, clip_factor=1.0, features=2.0, clipping=1.5, imbalance=1.0),
        ),
    )
