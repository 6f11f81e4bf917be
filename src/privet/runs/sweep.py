"""One recipe at several epsilons: accuracy and the limit of attacks beside each other, before one is chosen.

On stand-ins nothing private is read, and nothing is charged. On the private records themselves every model and every
figure is charged: the total is that of all ledgers together.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from privet.accounting.guarantee import Guarantee, guarantee, trade_off
from privet.effects.noisy_counts.figures import Figure
from privet.errors import BudgetExceeded, CheckpointError, RecipeError
from privet.mechanism.events import compose
from privet.records import Record
from privet.runs.evaluation.private_evaluation import Asked, evaluate_privately
from privet.runs.ledger_check import check_ledger
from privet.runs.measures import Measure
from privet.runs.project import total_of_runs
from privet.runs.recipes.recipe import Recipe
from privet.runs.run_files import RunFiles, write_json
from privet.runs.runner import train

SWEEP_NAME = "sweep.json"
_PROBED, _WARM = 8, 2
_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class SweepPoint(Record):
    """One epsilon.

    Attributes:
        epsilon: That of the model alone.
        found: The largest share of members that any attack finds at 1 % false accusations.
        measure: The name of the figure.
        value: The figure, on stand-ins or private records.
        low: Lower end of its interval.
        high: Upper end.
    """

    WHAT: ClassVar[str] = "a point of a sweep"

    epsilon: float
    found: float
    measure: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Sweep(Record):
    """A finished sweep.

    Attributes:
        title: That of the recipe.
        measured_on: What the figures were measured on, in words.
        points: One for each epsilon.
        total: The epsilon of everything that was charged; None where nothing private was read.
    """

    WHAT: ClassVar[str] = "a sweep"

    title: str
    measured_on: str
    points: tuple[SweepPoint, ...]
    total: float | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Time and memory of a sweep, from a few steps on stand-ins."""

    seconds: float
    peak_bytes: int


def estimate(recipes: Sequence[Recipe]) -> Estimate:
    """Run a few steps of the first recipe, whose records are stand-ins, and tell what all of them will take."""
    ticks: list[float] = []

    def is_enough() -> bool:
        ticks.append(time.monotonic())
        return len(ticks) >= _PROBED

    with tempfile.TemporaryDirectory() as folder:
        train(recipes[0], Path(folder) / "probe", should_stop=is_enough)
    done = ticks[_WARM:] if len(ticks) > _WARM + 1 else ticks
    each = (done[-1] - done[0]) / max(1, len(done) - 1)
    steps = sum(recipe.plan().num_steps for recipe in recipes)
    return Estimate(seconds=each * steps, peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def sweep_stand_ins(
    recipes: Sequence[Recipe],
    folder: str | Path,
    *,
    measured_on: str,
    after: Callable[[SweepPoint], None] = lambda point: None,
) -> Sweep:
    """Train every recipe on records that are public, and measure each model exactly.

    Guarantee: reads only the files that the recipes name, which the caller made up or declares public.
    """
    target, points = _new_folder(folder), []
    for recipe in recipes:
        run = target / f"epsilon-{recipe.privacy.epsilon:g}"
        outcome = train(recipe, run)
        if outcome.metrics is None or not outcome.metrics.measures:
            raise RecipeError("A model of the sweep was not measured: its data are not declared public.")
        first = outcome.metrics.measures[0]
        points.append(_point(recipe, outcome.promised.epsilon, first))
        after(points[-1])
    return _finished(target, Sweep(title=recipes[0].title, measured_on=measured_on, points=tuple(points)))


def charged_total(recipes: Sequence[Recipe], asked: Asked) -> Guarantee:
    """Return the guarantee of all models and their private evaluations together, before any data are read."""
    plans = [recipe.plan() for recipe in recipes]
    events = [(event, 1) for plan in plans for event in (plan.event, asked.release(plan).event)]
    first = plans[0]
    return guarantee(compose(events), delta=first.delta, adjacency=first.adjacency, unit=first.unit)


def sweep_charged(
    recipes: Sequence[Recipe],
    folder: str | Path,
    asked: Asked,
    *,
    max_epsilon: float | None = None,
    after: Callable[[SweepPoint], None] = lambda point: None,
) -> tuple[Sweep, Guarantee]:
    """Train every recipe on the private records and evaluate each model privately; all of it is charged.

    Guarantee: every run and every evaluation is charged on its own ledger before it reads a record, and the returned
    guarantee composes them all. Choosing an epsilon by the figures is post-processing of what it covers.

    Raises:
        BudgetExceeded: the total would exceed ``max_epsilon``; nothing was read.
    """
    total = charged_total(recipes, asked)
    if max_epsilon is not None and total.epsilon > max_epsilon:
        raise BudgetExceeded(
            f"All models and evaluations of the sweep spend epsilon {total.epsilon:.4g} together, and {max_epsilon:g} "
            "is allowed. Nothing was read. Name fewer or smaller epsilons, sweep stand-ins, or allow more."
        )
    target, points, runs = _new_folder(folder), [], []
    for recipe in recipes:
        run = target / f"epsilon-{recipe.privacy.epsilon:g}"
        if not train(recipe, run).is_finished:
            raise CheckpointError(
                "A run of the sweep was broken off. It stays charged; begin the sweep in a new folder."
            )
        figure = evaluate_privately(run, asked).figures.headline[0]
        runs.append(run)
        points.append(_point(recipe, check_ledger(run).trained.epsilon, figure))
        after(points[-1])
    spent = total_of_runs(runs).guarantee
    told = Sweep(
        title=recipes[0].title,
        measured_on="private records, with noise; every model and figure is charged",
        points=tuple(points),
        total=spent.epsilon,
    )
    return _finished(target, told), spent


def _point(recipe: Recipe, epsilon: float, figure: Measure | Figure) -> SweepPoint:
    plan = recipe.plan()
    (missed,) = trade_off(plan.event, adjacency=plan.adjacency, false_positive_rates=(_RATE,))
    return SweepPoint(
        epsilon=epsilon,
        found=float(1 - missed),
        measure=figure.name,
        value=figure.value,
        low=figure.low,
        high=figure.high,
    )


def _new_folder(folder: str | Path) -> Path:
    target = Path(folder)
    if target.exists() and any(entry.name != "stand-ins" for entry in target.iterdir()):
        raise CheckpointError(f"{target} holds files already. Name a new folder for the sweep: -o FOLDER.")
    target.mkdir(parents=True, exist_ok=True)
    return target


def _finished(target: Path, found: Sweep) -> Sweep:
    write_json(target / SWEEP_NAME, found.to_dict())
    return found


def remove_runs(folder: str | Path) -> None:
    """Remove the models of a sweep on stand-ins, which are good for nothing else; the figures stay."""
    for run in Path(folder).glob("epsilon-*"):
        if RunFiles(folder=run).is_run:
            shutil.rmtree(run)
