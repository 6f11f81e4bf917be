"""``privet train``: run a recipe, and print the guarantee before and after."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from privet.cli import console
from privet.cli.gathered import gathered
from privet.cli.own_data_options import own_data_options
from privet.cli.processes import is_further_rank, run_in_processes, unheard, without_option
from privet.cli.table_address import address
from privet.cli.train_own_data import OwnData, is_own_data, table_name

if TYPE_CHECKING:
    from privet.accounting.guarantee import Guarantee
    from privet.runs.recipes.recipe import Recipe
    from privet.runs.runner import RunOutcome
    from privet.training.tracking.progress import Progress


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options of the command."""

    recipe: str
    output: str | None
    own: OwnData
    overrides: tuple[str, ...]
    quick: bool
    without_privacy: bool
    evaluate_epsilon: float | None
    max_epsilon: float | None
    device: str | None
    unprotected_telemetry: bool
    tensorboard: bool
    quiet: bool

    def loaded(self) -> Recipe:
        """Return the recipe to train, but for a learning rate that is tried first."""
        chosen = [*self.overrides, *([] if self.device is None else [f'training.device="{self.device}"'])]
        chosen += [] if self.evaluate_epsilon is None else [f"evaluation.epsilon={self.evaluate_epsilon!r}"]
        loaded = self._loaded(chosen)
        return loaded.without_privacy(keeps_learning_rate=self.chooses_rate) if self.without_privacy else loaded

    def _loaded(self, overrides: Sequence[str]) -> Recipe:
        from privet.runs.recipes.recipe_files import load_recipe, packaged_recipes

        if is_own_data(self.recipe) and self.recipe not in packaged_recipes():
            if self.quick:
                raise click.UsageError("--quick needs a recipe with a [quick] table; own data have none. Remove it.")
            return self.own.recipe_for(self.recipe, overrides)
        return load_recipe(self.recipe, [*self.own.overrides(), *overrides], quick=self.quick)

    @property
    def chooses_rate(self) -> bool:
        return any(override.startswith("training.optimizer") for override in self.overrides)

    @property
    def folder(self) -> str:
        """The folder of the run."""
        if self.output:
            return self.output
        if not is_own_data(self.recipe):
            raise click.UsageError("Missing option '-o' / '--output': the folder of the run, such as -o runs/first.")
        own = self.own
        return f"runs/{table_name(address(self.recipe, table=own.table, query=own.query, key=own.key))}"


@console.command(
    "privet train demo -o runs/demo",
    "privet train my.csv --target y --epsilon 3 --schema schema.toml",
    "privet train demo --without-privacy -o runs/demo-open",
    "privet train images --epsilon 3 --size 20000 --test images_test",
    "privet train env:CLINIC --table stays --target y --epsilon 3 --schema s.toml",
    "privet train images --epsilon 3 --size 20000 --model net.py:build",
)
@console.recipe_argument
@click.option("-o", "--output", metavar="RUN", type=click.Path(), help="The run's folder; for own data, runs/NAME.")
@own_data_options
@console.set_option
@console.quick_option
@click.option(
    "--without-privacy", is_flag=True, help="Train without clipping and noise: NOT PRIVATE. For privet report."
)
@click.option(
    "--evaluate-epsilon",
    type=float,
    help="The test part is private: measure on it with noise that costs this epsilon, after the training.",
)
@click.option("--max-epsilon", type=float, help="Refuse a plan that spends more (exit code 3).")
@click.option("--device", help="auto, cpu, cuda, cuda:1 or mps.")
@click.option(
    "--unprotected-telemetry",
    is_flag=True,
    help="Show and keep losses of private data. They are not covered by the guarantee.",
)
@click.option("--tensorboard", is_flag=True, help="Also write RUN/tensorboard, without private values.")
@click.option("--processes", type=click.IntRange(1), help="Train in so many processes of this machine, as ranks.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@gathered(_Asked, "asked")
def train(asked: _Asked, processes: int | None) -> int:
    """Run RECIPE in the folder RUN, or resume the run in that folder.

    RECIPE is the name of a packaged recipe, a TOML file, or your own data: a
    CSV file with a header, the URL of a database with --table or --query, a file
    with a column of texts (--text), or a folder with one sub-folder of images per
    class. A URL with a password is named
    by an environment variable: env:NAME.

    The guarantee is printed before any data is read, and again, from the
    ledger, at the end. Ctrl-C stops after the current step (exit code 130); the
    same command resumes the run. Under torchrun, or with --processes, several
    processes carry out one run: rank 0 keeps the folder and prints.
    """
    if processes is not None and processes > 1:
        if asked.own.text is not None:
            raise click.UsageError("Texts (--text) are trained in one process. Leave --processes out.")
        with unheard():  # rank 0 says it again; mistakes in the recipe are told once, before anything is started
            asked.loaded()
        return run_in_processes(without_option(sys.argv[1:], "--processes"), processes)
    with unheard() if is_further_rank() else nullcontext():
        return _train(asked)


def _train(asked: _Asked) -> int:
    # First, so that a mistake in the recipe is reported before torch is loaded.
    loaded, quiet, max_epsilon = asked.loaded(), asked.quiet, asked.max_epsilon
    for warning in (loaded.warning, _weakness(loaded)):
        if warning is not None:
            console.remark(f"warning: {warning}")
    if loaded.own_weights is not None:
        _tell_network(loaded)
    folder = asked.folder
    if loaded.released is not None:
        console.remark(f"warning: {loaded.released.assumption}.")
    if loaded.evaluation is not None or loaded.released is not None:
        _announce_total(loaded, folder, max_epsilon)
    from privet.runs.run_files import RunFiles
    from privet.runs.runner import train as run_recipe

    was_finished = RunFiles(folder=Path(folder)).model.exists()

    from privet.runs.baseline_learning_rate import with_rate
    from privet.runs.launched import done_by_first, launched_ranks

    with launched_ranks(loaded.training.device) as ranks:
        speaks = ranks is None or ranks.is_first
        if asked.without_privacy and not asked.chooses_rate and max_epsilon is None:
            loaded = with_rate(loaded, done_by_first(ranks, partial(_tuned_rate, loaded, folder, quiet=quiet)))
        with stopping_on_signals("step") as should_stop:
            outcome = run_recipe(
                loaded,
                folder,
                progress=_progress(folder, quiet=quiet, tensorboard=asked.tensorboard) if speaks else None,
                unprotected=asked.unprotected_telemetry,
                max_epsilon=max_epsilon,
                should_stop=should_stop,
                announce=(lambda promised: _print_guarantee("promised", promised)) if speaks else None,
                ranks=ranks,
            )
        if speaks:
            _print(outcome, folder, loaded, was_finished=was_finished)
        if outcome.is_finished and loaded.evaluation is not None:
            number = 1 if ranks is None else ranks.size
            done_by_first(ranks, partial(_evaluate, loaded, folder, max_epsilon, num_processes=number))
    if outcome.is_finished and speaks:
        console.remark(f"Next: privet report {folder}")
    return console.OK if outcome.is_finished else console.INTERRUPTED


def _tell_network(loaded: Recipe) -> None:
    """Print what of a user's own network is trained, and what the guarantee then rests on, before any charge."""
    if loaded.network is not None:
        from privet.runs.own_network import own_network

        for line in own_network(loaded.network, loaded.info).told():
            console.remark(line)
    for line in loaded.assumptions:
        console.remark(f"The guarantee assumes: {line}.")


def _announce_total(loaded: Recipe, folder: str, max_epsilon: float | None) -> None:
    """Print the guarantee of schema, training and evaluation together, before a training; refuse one not allowed."""
    from privet.accounting.charges import HypotheticalCharges
    from privet.accounting.guarantee import rounded_up
    from privet.errors import BudgetExceeded, RecipeError
    from privet.runs.evaluation.private_evaluation import asked_in
    from privet.runs.resuming import plan_of_run
    from privet.runs.run_files import RunFiles

    plan, asked, released = plan_of_run(loaded, RunFiles(folder=Path(folder))), asked_in(loaded), loaded.released
    earlier = () if released is None else ((released.event, 1),)
    if asked is None:
        total = plan.account(HypotheticalCharges(planned=plan.segments, besides=earlier, is_complete=True))
    else:
        if plan.not_private_because:
            raise RecipeError("A run without privacy has no budget to evaluate with. Leave --evaluate-epsilon out.")
        asked.terms(loaded, plan)  # refuses groups that do not exist
        total = asked.promised(plan, earlier)
    if max_epsilon is not None and total.epsilon > max_epsilon:
        what = " and ".join(
            name
            for name, there in (("schema", released), ("training", plan), ("evaluation", asked))
            if there is not None
        )
        raise BudgetExceeded(
            f"{what.capitalize()} together spend epsilon {rounded_up(total.epsilon)}, and {max_epsilon:g} is "
            "allowed. Nothing was run. Lower privacy.epsilon or evaluation.epsilon, or allow more."
        )
    _print_guarantee("in all", total)


def _evaluate(loaded: Recipe, folder: str, max_epsilon: float | None, *, num_processes: int) -> None:
    """Evaluate a finished run privately, once: a run that was evaluated, or charged for it, is left alone."""
    from privet.cli.private_figures import measure_privately, show_figures
    from privet.runs.evaluated import stored_evaluation
    from privet.runs.evaluation.private_evaluation import asked_in
    from privet.runs.ledger_check import check_ledger
    from privet.runs.run_files import RunFiles

    asked, earlier = asked_in(loaded), stored_evaluation(RunFiles(folder=Path(folder)))
    assert asked is not None
    if earlier is not None:
        show_figures(earlier)
    elif check_ledger(Path(folder)).further:
        console.remark(
            "A private evaluation was charged and broken off. It stays charged; another one costs as much again: "
            f"privet evaluate {folder} --evaluate-epsilon {asked.epsilon:g}"
        )
    else:
        measure_privately(folder, asked, max_epsilon=max_epsilon, num_processes=num_processes)


def _tuned_rate(recipe: Recipe, folder: str, *, quiet: bool) -> float:
    from privet.runs.baseline_learning_rate import with_tuned_learning_rate
    from privet.runs.run_files import RunFiles

    files = RunFiles(folder=Path(folder))
    if not quiet and not files.is_run:
        console.remark("Trying a few learning rates for the run without privacy; this may take as long as the run.")
    rate = with_tuned_learning_rate(recipe, files).training.optimizer.learning_rate
    if not quiet:
        console.remark(f"learning rate {rate:.3g}, the best of a few on a tenth of the training records")
    return rate


def _print_guarantee(name: str, guarantee: Guarantee) -> None:
    click.echo(console.fitted(f"{name.ljust(10)}{guarantee}", sys.stdout, hang=10))


def _weakness(loaded: Recipe) -> str | None:
    """Return a warning about a large epsilon; the plan is computed only for a large epsilon."""
    from privet.accounting.guarantee import LARGEST_USEFUL_EPSILON

    asked = loaded.privacy.epsilon
    return None if asked is None or asked <= LARGEST_USEFUL_EPSILON else loaded.plan().guarantee().weakness


def _progress(folder: str, *, quiet: bool, tensorboard: bool) -> Progress:
    from privet.cli.progress_line import progress_for
    from privet.runs.run_files import RunFiles
    from privet.training.tracking.progress import Several
    from privet.training.tracking.trackers import TensorBoard

    shown = progress_for(sys.stderr, quiet=quiet)
    if not tensorboard:
        return shown
    return Several(receivers=(TensorBoard(RunFiles(folder=Path(folder)).tensorboard), shown))


def _print(outcome: RunOutcome, folder: str, loaded: Recipe, *, was_finished: bool) -> None:
    is_public, is_evaluated = loaded.is_public, loaded.evaluation is not None
    has_test_data = loaded.own_data is None or loaded.own_data.test is not None
    if was_finished:
        console.remark(f"{folder} was finished before, and no step was added. For another run name another folder: -o.")
    _print_guarantee("spent", outcome.spent)
    lost = outcome.steps_done - outcome.steps_taken
    note = f" ({lost:,} charged and lost with an earlier process)" if lost > 0 else ""
    steps = f"{outcome.steps_done:,} of {outcome.num_steps:,}{note}"
    # The duration of steps depends on their private numbers of examples.
    facts = {"steps": f"{steps}, {outcome.seconds:,.1f} s in this process" if is_public else steps}
    for measure in outcome.metrics.measures if outcome.metrics is not None else ():
        star = "" if is_public else "*"
        facts[f"test {measure.name}"] = (
            f"{measure.value:.4f}{star} ({measure.low:.4f} to {measure.high:.4f}, {measure.interval}, "
            f"n = {measure.num_examples:,})"
        )
    console.show_facts(facts)
    if outcome.metrics is not None and not is_public:
        click.echo("  * not covered by the guarantee")
    if outcome.is_finished:
        if outcome.metrics is None and not is_evaluated:
            reason = (
                "figures on test data are not covered by the guarantee" if has_test_data else "there are no test data"
            )
            data = "" if has_test_data else " --data TEST"
            console.remark(
                f"The model was not measured: {reason}.\nTo measure it anyway: privet evaluate {folder}{data}"
            )
    else:
        console.remark("Interrupted: the run is not finished. The same command resumes the run.")


@contextmanager
def stopping_on_signals(what: str) -> Iterator[Callable[[], bool]]:
    """Count Ctrl-C and SIGTERM within the block; the yielded function returns whether one was received.

    A second signal raises ``KeyboardInterrupt`` at once: the step, or trial, is given up and stays charged.
    """
    num_signals = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal num_signals
        num_signals += 1
        if num_signals > 1:
            raise KeyboardInterrupt
        click.echo(f"\nstopping after this {what}; press again to abort the {what}, which stays charged", err=True)

    before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: num_signals > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
