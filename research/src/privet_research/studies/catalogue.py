"""The studies by name. A study imports its code when it runs, so listing is quick."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from privet.errors import ArgumentError
from privet_research.studies.reproduction_list import SINGLE_FIGURES
from privet_research.studies.side_effect_list import SIDE_EFFECTS
from privet_research.studies.sparsification_list import SPARSIFICATION
from privet_research.studies.study import Row, Run, Study, table_of

if TYPE_CHECKING:
    import torch

    from privet_research.studies.clipping import ClippingSettings


def mnist_settings() -> ClippingSettings:
    """Return the paper's settings on MNIST."""
    from privet.datasets import load
    from privet.models import clipping_mnist_cnn
    from privet_research.studies.clipping import ClippingSettings

    return ClippingSettings(
        name="mnist",
        load=lambda: load("mnist", normalisation="standardized"),
        build=clipping_mnist_cnn,
        batch_size=256,
        epochs=60,
        learning_rate=0.15,
        noise_multiplier=1.1,
        norm=1.0,
        cutoff=210.0,
        claimed_epsilon=2.32,
    )


def cifar10_settings() -> ClippingSettings:
    """Return the paper's settings on CIFAR-10; its number of epochs is the one that its epsilon implies."""
    from privet.datasets import load
    from privet.models import tutorial_cnn
    from privet_research.studies.clipping import ClippingSettings

    return ClippingSettings(
        name="cifar10",
        load=lambda: load("cifar10", normalisation="standardized"),
        build=tutorial_cnn,
        batch_size=250,
        epochs=60,
        learning_rate=0.05,
        noise_multiplier=1.3,
        norm=1.5,
        cutoff=75.0,
        claimed_epsilon=1.96,
    )


def clusters_settings() -> ClippingSettings:
    """Return a made-up task with wrong labels, on which clipping by a threshold is over-confident."""
    from privet.models.dense import mlp
    from privet_research.studies.clipping import ClippingSettings
    from privet_research.studies.clusters import clustered_classes

    return ClippingSettings(
        name="clusters",
        load=lambda: clustered_classes(seed=1),
        build=lambda: mlp((20,), 5, hidden_widths=(128,)),
        batch_size=256,
        epochs=80,
        learning_rate=2.0,
        noise_multiplier=1.0,
        norm=0.1,
        cutoff=10.0,
        claimed_epsilon=None,
    )


def _clipping_run(
    settings: Callable[[], ClippingSettings], quick_epochs: int
) -> Callable[[Sequence[int], torch.device, bool], Iterator[Row]]:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.clipping import run_clipping_study

        whole = settings()
        return run_clipping_study(whole.shortened(quick_epochs) if quick else whole, seeds=seeds, device=device)

    return run


def _drawn_clusters_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.calibration_seeds import run_drawn_clusters

    settings = clusters_settings()
    return run_drawn_clusters(settings.shortened(20) if quick else settings, seeds=seeds, device=device)


def _regression_run(names: Sequence[str]) -> Callable[[Sequence[int], torch.device, bool], Iterator[Row]]:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies import regression

        chosen = [regression.SETTINGS[name]() for name in names]
        chosen = [settings.shortened(50) for settings in chosen] if quick else chosen
        return regression.run_regression_study(chosen, seeds=seeds, device=device)

    return run


def _text_as_printed(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.text import AS_PRINTED, run_text_study

    return run_text_study([AS_PRINTED.shortened() if quick else AS_PRINTED], seeds=seeds, device=device)


def _text_variants(changes: Sequence[str]) -> Callable[[Sequence[int], torch.device, bool], Iterator[Row]]:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.text import TextSettings, run_text_study
        from privet_research.studies.variants import variants

        base = TextSettings().shortened() if quick else TextSettings()
        return run_text_study(variants(base, changes), seeds=seeds, device=device)

    return run


def _band_variants(changes: Sequence[str]) -> Callable[[Sequence[int], torch.device, bool], Iterator[Row]]:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.text_bands import BandSettings, run_band_study
        from privet_research.studies.variants import variants

        base = BandSettings().shortened() if quick else BandSettings()
        return run_band_study(variants(base, changes), seeds=seeds, device=device)

    return run


def _hidden_state_run(dataset: str, earlier: Sequence[Row] = ()) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.hidden_state import Setting, run_hidden_state_study

        epochs = 2 if quick else Setting().epochs
        settings = [Setting(dataset=dataset, epsilon=epsilon, epochs=epochs) for epsilon in (4.76, 1.33)]
        return run_hidden_state_study(settings, seeds=seeds, device=device, earlier=earlier)

    return run


def _tuned_run(dataset: str, earlier: Sequence[Row] = ()) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.hidden_state import Setting
        from privet_research.studies.hidden_state_tuned import EPSILONS, RATES, run_tuned_study

        return run_tuned_study(
            dataset,
            seeds=seeds,
            device=device,
            epochs=1 if quick else Setting().epochs,
            epsilons=EPSILONS[:1] if quick else EPSILONS,
            rates={arm: rates[:1] for arm, rates in RATES.items()} if quick else RATES,
            earlier=earlier,
        )

    return run


def _noise_grid_run(name: str) -> Callable[[Sequence[int], torch.device, bool], Iterator[Row]]:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies import noise_problems as problems
        from privet_research.studies.noise_arms import MAIN_ARMS, OTHER_ARMS
        from privet_research.studies.noise_grid import run_noise_grid

        make = {
            "digits": problems.digits_problems,
            "fashion": problems.fashion_problems,
            "adult": problems.adult_problems,
        }[name]
        if quick:
            arms = [arm for arm in MAIN_ARMS if arm.name != "L2-Laplace"]  # its calibration alone takes a minute
            return run_noise_grid(make(steps=60)[:1], arms, seeds=seeds, device=device, epsilons=(3.0,))
        arms = [*MAIN_ARMS, *(OTHER_ARMS if name == "digits" else ())]
        return run_noise_grid(make(), arms, seeds=seeds, device=device)

    return run


def _noise_procedure_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.noise_arms import PROCEDURE_ARMS
    from privet_research.studies.noise_grid import run_noise_grid
    from privet_research.studies.noise_problems import digits_problems, mnist_problems

    if quick:
        return run_noise_grid(
            digits_problems(steps=60)[:1], PROCEDURE_ARMS, seeds=seeds, device=device, epsilons=(3.0,)
        )
    # The other two arms are worse or not private, and are compared on digits.
    return run_noise_grid(mnist_problems(), PROCEDURE_ARMS[:2], seeds=seeds, device=device)


def _noise_budget_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.noise_budgets import run_budget_study

    return run_budget_study(seeds=seeds, device=device, epsilons=(1.0,) if quick else (0.1, 0.2, 0.5, 1.0, 2.0, 8.0))


def _noise_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.noise_shape import run_noise_study

    if quick:
        return run_noise_study(seeds=seeds, device=device, epsilons=(3.0,), steps=60)
    return run_noise_study(seeds=seeds, device=device)


def _views_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.views_and_averages import run_views_study

    return run_views_study(seeds=seeds, device=device, epochs=2 if quick else 20)


_NOISE_STUDIES = (
    Study(
        name="noise-digits",
        description="every kind of noise at one guarantee on digits, well and badly scaled; needs scikit-learn",
        num_seeds=20,
        run=_noise_grid_run("digits"),
        table=table_of("noise_grid_table", "noise_grid_table"),
    ),
    Study(
        name="noise-fashion",
        description="the same on the packaged Fashion-MNIST images, with a softmax classifier",
        num_seeds=5,
        run=_noise_grid_run("fashion"),
        table=table_of("noise_grid_table", "noise_grid_table"),
    ),
    Study(
        name="noise-adult",
        description="the same on Adult, with numbers in the unit interval and in their natural units",
        num_seeds=10,
        run=_noise_grid_run("adult"),
        table=table_of("noise_grid_table", "noise_grid_table"),
    ),
    Study(
        name="noise-procedure",
        description="noise solved anew for every step against plain noise on MNIST; ten minutes of a processor core",
        num_seeds=5,
        run=_noise_procedure_run,
        table=table_of("noise_grid_table", "noise_grid_table"),
    ),
    Study(
        name="noise-budgets",
        description="the noise of a step by published rules and by tight accounting, and the real epsilon of each",
        num_seeds=1,
        run=_noise_budget_run,
        table=table_of("noise_budgets", "budget_table"),
        measure="noise_multiplier",
    ),
    Study(
        name="noise-digits-sessions",
        description="plain and shaped noise on digits, each run in its own session, with constants fixed in advance",
        num_seeds=5,
        run=_noise_run,
        table=table_of("noise_table", "noise_table"),
    ),
)

_STUDIES = (
    Study(
        name="clipping-mnist",
        description="local, global and automatic clipping on MNIST: accuracy and calibration beside the paper's",
        num_seeds=3,
        run=_clipping_run(mnist_settings, 1),
        table=table_of("clipping_table", "clipping_table"),
    ),
    Study(
        name="clipping-cifar10",
        description="the same on CIFAR-10",
        num_seeds=3,
        run=_clipping_run(cifar10_settings, 1),
        table=table_of("clipping_table", "clipping_table"),
    ),
    Study(
        name="clipping-clusters",
        description="the same on a synthetic task with wrong labels, about a minute",
        num_seeds=3,
        run=_clipping_run(clusters_settings, 20),
        table=table_of("clipping_table", "clipping_table"),
    ),
    Study(
        name="calibration-clusters",
        description="local against global clipping on that task, redrawn for every seed: the gain with its interval",
        num_seeds=10,
        run=_drawn_clusters_run,
        table=table_of("calibration_seeds", "drawn_clusters_table"),
        measure="ece_15",
    ),
    Study(
        name="views-and-averages",
        description="several views of a record and averaged weights, against a decreasing rate, on the demo's images",
        num_seeds=3,
        run=_views_run,
        table=table_of("views_and_averages", "views_table"),
    ),
    Study(
        name="text-sst2-mixed",
        description="MiniLM on SST-2 with mixed clipping as printed: one rate, no average; needs privet[text]",
        num_seeds=3,
        run=_text_as_printed,
        table=table_of("text_table", "text_table"),
    ),
    Study(
        name="text-sst2",
        description="MiniLM fine-tuned on SST-2 at epsilon 3: local against mixed clipping; needs privet[text]",
        num_seeds=3,
        run=_text_variants(()),
        table=table_of("text_table", "text_table"),
        vary=_text_variants,
    ),
    Study(
        name="text-sst2-bands",
        description="MiniLM on SST-2, three epochs: correlated against independent noise; needs privet[text]",
        num_seeds=5,
        run=_band_variants(()),
        table=table_of("text_bands", "band_table"),
        vary=_band_variants,
    ),
    Study(
        name="regression-housing",
        description="local, global and automatic clipping with Adam on California housing: squared errors",
        num_seeds=3,
        run=_regression_run(["housing"]),
        table=table_of("regression_table", "regression_table"),
        measure="test_error",
    ),
    Study(
        name="regression-wine",
        description="the same with full-batch gradient descent on red wine, at two levels of noise",
        num_seeds=3,
        run=_regression_run(["wine", "private wine"]),
        table=table_of("regression_table", "regression_table"),
        measure="test_error",
    ),
    Study(
        name="hidden-state-mnist",
        description="noisy cyclic descent with a hidden state against DP-SGD and noisy statistics, on MNIST",
        num_seeds=5,
        run=_hidden_state_run("mnist"),
        table=table_of("hidden_state_table", "hidden_state_table"),
        resume=partial(_hidden_state_run, "mnist"),
    ),
    Study(
        name="hidden-state-cifar10",
        description="the same on CIFAR-10",
        num_seeds=5,
        run=_hidden_state_run("cifar10"),
        table=table_of("hidden_state_table", "hidden_state_table"),
        resume=partial(_hidden_state_run, "cifar10"),
    ),
)

_TUNED = tuple(
    Study(
        name=f"hidden-state-{dataset}-tuned",
        description=f"iterative methods with a hidden state on {title}, at rates chosen on held-out training images",
        num_seeds=5,
        run=_tuned_run(dataset),
        table=table_of("hidden_state_tuned", "tuned_table"),
        resume=partial(_tuned_run, dataset),
    )
    for dataset, title in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
)

STUDIES: Mapping[str, Study] = MappingProxyType(
    {
        study.name: study
        for study in (*_STUDIES, *_TUNED, *SIDE_EFFECTS, *_NOISE_STUDIES, *SPARSIFICATION, *SINGLE_FIGURES)
    }
)


def find_study(name: str) -> Study:
    """Return the study of this name.

    Raises:
        ArgumentError: no study has this name; the message lists all and suggests the nearest.
    """
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(f"There is no study {name!r}.{hint} Studies: {', '.join(STUDIES)}.")
    return STUDIES[name]
