"""The studies of single figures. A study imports its code when it runs, so listing is quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from privet_research.studies.study import Row, Run, Study, table_of

if TYPE_CHECKING:
    import torch

    from privet_research.studies.mask_tasks import MaskTask


def _waste_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.poisson_waste import run_waste_study

    return run_waste_study(seeds=seeds)


def _kernel_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.tangent_kernels import run_kernel_study

    return run_kernel_study(seeds=seeds, device=device, num_draws=20_000 if quick else 200_000)


def _flow_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.clipped_flow import run_flow_study

    if quick:
        return run_flow_study(seeds=seeds, device=device, num_problems=60, num_steps=3_000, num_noisy=0)
    return run_flow_study(seeds=seeds, device=device)


def momentum_task(quick: bool) -> MaskTask:
    """Return what the grid of thresholds and momenta is trained on."""
    from privet_research.studies.mask_tasks import CIFAR10, DIGITS

    return DIGITS.shortened(8) if quick else CIFAR10


def _momentum_from(earlier: Sequence[Row] = ()) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.momentum_grid import run_momentum_study

        return run_momentum_study(momentum_task(quick), seeds=seeds, device=device, earlier=earlier)

    return run


def _mask_statistics_from(earlier: Sequence[Row] = ()) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.mask_statistics import run_mask_statistics
        from privet_research.studies.mask_tasks import CIFAR10, DIGITS

        return run_mask_statistics(DIGITS if quick else CIFAR10, seeds=seeds, device=device, earlier=earlier)

    return run


def _course_run(dataset: str) -> Callable[[Sequence[int], torch.device, bool], Iterator[Row]]:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.clipping_course import cifar10_course, mnist_course, run_course_study

        whole = mnist_course() if dataset == "mnist" else cifar10_course()
        return run_course_study(whole.shortened() if quick else whole, seeds=seeds, device=device)

    return run


def _plugged_in_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies import sparsification_cells as cells
    from privet_research.studies.mask_variants import run_plugged_in_study

    if quick:
        return run_plugged_in_study([cells.quick(cells.NETWORKS["fashion"].at(3.0))], seeds=seeds, device=device)
    settings = [cells.NETWORKS[name].at(3.0) for name in ("cifar10", "cifar10-scattering")]
    return run_plugged_in_study(settings, seeds=seeds, device=device)


def _partition_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies import sparsification_cells as cells
    from privet_research.studies.mask_variants import run_partition_study

    if quick:
        return run_partition_study([cells.quick(cells.NETWORKS["fashion"].at(3.0))], seeds=seeds, device=device)
    settings = [cells.NETWORKS["cifar10"].at(epsilon) for epsilon in (3.0, 1.0)]
    return run_partition_study(settings, seeds=seeds, device=device)


def _picture_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.digit_pictures import run_picture_study

    if quick:
        return run_picture_study(seeds=seeds, device=device, epochs=4, num_train=6_000)
    return run_picture_study(seeds=seeds, device=device)


def _curve_resumed(earlier: Sequence[Row]) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.hidden_state import CURVE_ARMS, Setting, run_hidden_state_study

        epsilons, epochs = ((1.0, 8.0), 1) if quick else ((0.5, 1.0, 2.0, 4.0, 8.0), Setting().epochs)
        settings = [Setting(dataset="cifar10", epsilon=epsilon, epochs=epochs) for epsilon in epsilons]
        return run_hidden_state_study(settings, seeds=seeds, device=device, arms=list(CURVE_ARMS), earlier=earlier)

    return run


SINGLE_FIGURES = (
    Study(
        name="poisson-waste",
        description="records that Poisson sampling never draws, and overflowing batches, by sampler; seconds",
        num_seeds=1,
        run=_waste_run,
        table=table_of("poisson_waste", "waste_rows_table"),
        measure="never_seen",
    ),
    Study(
        name="hidden-state-curve",
        description="accuracy by epsilon on CIFAR-10: cyclic descent, DP-SGD and logistic regression",
        num_seeds=3,
        run=_curve_resumed([]),
        table=table_of("hidden_state_table", "hidden_state_table"),
        resume=_curve_resumed,
    ),
    Study(
        name="tangent-kernels",
        description="effect of each kind of clipping on the tangent kernel, by search for counter-examples; seconds",
        num_seeds=3,
        run=_kernel_run,
        table=table_of("tangent_kernels", "kernel_table"),
        measure="least_eigenvalue",
    ),
    Study(
        name="clipped-flow",
        description="the course of the loss under each kind of clipping, integrated; noise in smaller steps; minutes",
        num_seeds=3,
        run=_flow_run,
        table=table_of("clipped_flow", "flow_table"),
        measure="seed",
    ),
    Study(
        name="clipping-course-mnist",
        description="loss and accuracy by epoch, reliability and other cutoffs of global clipping, on MNIST",
        num_seeds=3,
        run=_course_run("mnist"),
        table=table_of("clipping_course", "course_table"),
    ),
    Study(
        name="clipping-course-cifar10",
        description="the same on CIFAR-10, flat and layerwise",
        num_seeds=3,
        run=_course_run("cifar10"),
        table=table_of("clipping_course", "course_table"),
    ),
    Study(
        name="sparsification-plugged-in",
        description="random masks by final rate, with all other constants unchanged",
        num_seeds=3,
        run=_plugged_in_run,
        table=table_of("mask_variants", "variants_table"),
    ),
    Study(
        name="sparsification-partition",
        description="random masks under Poisson sampling and under shuffled batches, with both guarantees",
        num_seeds=3,
        run=_partition_run,
        table=table_of("mask_variants", "variants_table"),
    ),
    Study(
        name="sparsification-momentum",
        description="clipping threshold against momentum, for SGD and for Adam; wants a GPU",
        num_seeds=3,
        run=_momentum_from(),
        table=table_of("momentum_grid", "momentum_table"),
        resume=_momentum_from,
    ),
    Study(
        name="mask-statistics",
        description="gradients, frequencies and accuracy along runs with several kinds of masks; wants a GPU",
        num_seeds=3,
        run=_mask_statistics_from(),
        table=table_of("mask_statistics", "mask_statistics_table"),
        measure="value",
        resume=_mask_statistics_from,
    ),
    Study(
        name="digit-pictures",
        description="digits that a private network classifies right and wrong, and digits made smaller by padding",
        num_seeds=3,
        run=_picture_run,
        table=table_of("digit_pictures", "picture_table"),
        measure="seed",
    ),
)
