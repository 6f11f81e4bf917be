"""Auditing a recipe or a run: its own plan and network against its own claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privet import checks
from privet.attacks.audit_claim import AuditFinding
from privet.attacks.canary_attacks import Attack, GradientAttack, LossAttack
from privet.attacks.canary_audit import CanaryAudit, Coins, sharpened
from privet.attacks.one_run_audit import OneRunAudit
from privet.datasets import load
from privet.datasets.info import DatasetInfo
from privet.errors import RecipeError
from privet.plan import Plan
from privet.runs.building import build_model, build_optimizer, choose_device, loss_function, on_device
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe, packaged_recipes
from privet.runs.resuming import stored_plan, stored_recipe
from privet.runs.run_files import RunFiles
from privet.runs.user_models import build_referenced
from privet.vocabulary import Adjacency, Release

# The gradient attack uses about this many steps: more steps cost time and add little.
_NUM_ATTACKED_STEPS = 60
_DEFAULT_PHYSICAL_BATCH = 256
# Name of the audit of a plan's pieces at a small noise multiplier.
LITTLE_NOISE = "canaries, little noise"


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Findings of the audits of one plan.

    Attributes:
        title: Title of the recipe.
        plan_hash: Fingerprint of the audited plan.
        epsilon: Promised epsilon of the whole plan.
        delta: Promised delta of the whole plan.
        findings: One per audit and attacker.
    """

    title: str
    plan_hash: str
    epsilon: float
    delta: float
    findings: tuple[AuditFinding, ...]

    @property
    def is_broken(self) -> bool:
        """Whether any audit refutes a claim."""
        return any(finding.is_broken for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        claim = {"recipe": self.title, "plan": self.plan_hash, "epsilon": self.epsilon, "delta": self.delta}
        return {**claim, "is_broken": self.is_broken, "findings": [finding.to_dict() for finding in self.findings]}


class AuditKind(Enum):
    """Which audit to run.

    CANARY: white-box canaries in the network's own parameters; reads no data, takes seconds.
    ONE_RUN: a whole training with canaries among the data; for public data, takes as long as training.
    """

    CANARY = "canary"
    ONE_RUN = "one-run"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of an audit: a recipe with its calibrated plan, and optionally a network of the user's own.

    Attributes:
        recipe: Names data, network and training.
        plan: The calibrated plan.
        model: ``package.module:function`` or ``file.py:function``, to replace the recipe's network.
        folder: The run's folder; None for a recipe.
    """

    recipe: Recipe
    plan: Plan
    model: str | None = None
    folder: Path | None = None

    def build(self, device: torch.device, seed: int) -> nn.Module:
        """Return the network, freshly initialised from the seed, in training mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build_model(self.recipe, device) if self.model is None else build_referenced(self.model)
        return model.to(device).train()

    def losses(self, model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss that training would use."""
        return loss_function(self.recipe.info, model)


def find_subject(recipe_or_run: str, overrides: Sequence[str] = (), *, model: str | None = None) -> Subject:
    """Return the subject for a recipe's name, a recipe file or a run folder. Reads no data.

    Raises:
        RecipeError: there is no such recipe, or overrides were given for a run.
    """
    files = RunFiles(folder=Path(recipe_or_run))
    if recipe_or_run not in packaged_recipes() and files.folder.is_dir():
        if overrides:
            raise RecipeError(f"{recipe_or_run} is a run, and its recipe cannot be changed. Audit a recipe.")
        return Subject(recipe=stored_recipe(files), plan=stored_plan(files), model=model, folder=files.folder)
    recipe = load_recipe(recipe_or_run, overrides)
    return Subject(recipe=recipe, plan=recipe.plan(), model=model)


def audit(
    subject: Subject,
    *,
    kinds: Sequence[AuditKind] = (AuditKind.CANARY,),
    num_canaries: int = 2000,
    num_rounds: int = 10,
    confidence: float = 0.9999,
    seed: int = 0,
    device: str = "auto",
) -> AuditReport:
    """Audit a plan on its network; the report compares each proven lower bound with the claim.

    Args:
        subject: From :func:`find_subject`.
        kinds: The audits to run.
        num_canaries: Number of canaries of each audit.
        num_rounds: Rounds of the canary audit; the one-run audit runs the whole plan.
        confidence: A correct program passes each test with at least this probability.
        seed: Seed of all random numbers.
        device: Name of the device.

    Guarantee:
        The canary audit reads no data. The one-run audit reads the training data and is refused unless they are public,
        because its findings are a function of them.
    """
    checks.count("num_canaries", num_canaries)
    where = choose_device(device)
    findings: list[AuditFinding] = []
    for kind in dict.fromkeys(kinds):
        if kind is AuditKind.CANARY:
            findings += _canary_findings(subject, where, num_canaries, num_rounds, confidence, seed)
        else:
            findings += _one_run_findings(subject, where, num_canaries, confidence, seed)
    promised = subject.plan.guarantee()
    return AuditReport(
        title=subject.recipe.title if subject.model is None else f"{subject.recipe.title} with {subject.model}",
        plan_hash=subject.plan.hash,
        epsilon=promised.epsilon,
        delta=promised.delta,
        findings=tuple(findings),
    )


def made_up_records(info: DatasetInfo, num_records: int, device: torch.device, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return normal random numbers of the data's shape with random labels. Reads no data."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num_records, *info.input_shape, generator=generator)
    labels = info.task.made_up(num_records, generator)
    return features.to(device), labels.to(device)


def _canary_findings(
    subject: Subject, device: torch.device, num_canaries: int, num_rounds: int, confidence: float, seed: int
) -> list[AuditFinding]:
    """Audit the plan per round and as a whole, and its pieces at little noise, where faults show soonest."""
    model = subject.build(device, seed)
    record = made_up_records(subject.recipe.info, num_canaries, device, seed=seed)
    sharp = sharpened(subject.plan, num_rounds=num_rounds)

    def run(plan: Plan, coins: Coins) -> AuditFinding:
        test = CanaryAudit(
            num_canaries=num_canaries,
            num_rounds=num_rounds,
            confidence=confidence,
            coins=coins,
            physical_batch_size=_physical_batch_size(subject.recipe),
            seed=seed,
        )
        return test.run(model, plan, losses=subject.losses(model), record=record)

    return [
        replace(run(sharp, Coins.EVERY_ROUND), audit=LITTLE_NOISE),
        run(subject.plan, Coins.EVERY_ROUND),
        run(subject.plan, Coins.ONCE),
    ]


def _one_run_findings(
    subject: Subject, device: torch.device, num_canaries: int, confidence: float, seed: int
) -> tuple[AuditFinding, ...]:
    recipe, plan = subject.recipe, subject.plan
    if not recipe.is_public:
        raise RecipeError(
            "The one-run audit trains on the data: its findings depend on them and would cost additional privacy. It "
            "is for public data: set data_is_public = true if they are, or use the canary audit, which reads no data."
        )
    model = subject.build(device, seed)
    data = on_device(load(recipe.dataset, normalisation=recipe.normalisation).train, device)
    rows = 2 * num_canaries if plan.adjacency is Adjacency.REPLACE_ONE else num_canaries
    features, labels = made_up_records(recipe.info, rows, device, seed=seed)
    attacks: list[Attack] = [LossAttack()]
    if plan.release is Release.EVERY_ITERATE:
        attacks.append(GradientAttack(every=max(1, plan.num_steps // _NUM_ATTACKED_STEPS)))
    test = OneRunAudit(confidence=confidence, physical_batch_size=_physical_batch_size(recipe), seed=seed)
    return test.run(
        model,
        build_optimizer(recipe.training, model),
        plan,
        losses=subject.losses(model),
        records=(data.features, data.labels),
        canaries=(features.to(data.features.dtype), labels.to(data.labels.dtype)),
        attacks=attacks,
    )


def _physical_batch_size(recipe: Recipe) -> int:
    size = recipe.training.physical_batch_size
    return size if isinstance(size, int) else _DEFAULT_PHYSICAL_BATCH
