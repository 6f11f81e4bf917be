"""The studies of random masks. A study imports its code when it runs, so listing is quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privet_research.studies.study import Row, Run, Study, table_of
from privet_research.studies.variants import variants

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class _CellOptions:
    """Settings of a cell on scattering features: the share of the budget for their normalisation."""

    normalisation_share: float = 0.0


_CELLS = {
    "cifar10": "DP-CNN on CIFAR-10",
    "cifar10-scattering": "H-CNN on scattering features of CIFAR-10; needs privet[scattering]",
    "svhn": "DP-CNN on SVHN; needs its files",
    "svhn-scattering": "H-CNN on scattering features of SVHN; needs its files and privet[scattering]",
    "fashion": "DP-CNN/S on Fashion-MNIST",
    "fashion-scattering": "H-CNN/S on scattering features of Fashion-MNIST; needs privet[scattering]",
}


def _cell_run(
    network: str, epsilon: float, earlier: Sequence[Row] = (), options: Sequence[_CellOptions] = (_CellOptions(),)
) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies import sparsification_cells as cells
        from privet_research.studies.sparsification import run_sparsification_study

        found = [cells.NETWORKS[network].at(epsilon, normalisation_share=each.normalisation_share) for each in options]
        settings = [cells.quick(each) for each in found] if quick else found
        return run_sparsification_study(settings, seeds=seeds, device=device, earlier=earlier)

    return run


def _cell_resume(network: str, epsilon: float) -> Callable[[Sequence[Row]], Run]:
    return lambda earlier: _cell_run(network, epsilon, earlier)


def _cell_vary(network: str, epsilon: float) -> Callable[[Sequence[str]], Run] | None:
    if not network.endswith("-scattering"):
        return None
    return lambda changes: _cell_run(network, epsilon, options=variants(_CellOptions(), changes))


def _reconstruction_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.reconstruction import FULL, QUICK, run_reconstruction_study

    return run_reconstruction_study(QUICK if quick else FULL, seeds=seeds, device=device)


def _resnet_reconstruction_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.reconstruction import QUICK, RESNET, run_reconstruction_study

    return run_reconstruction_study(QUICK if quick else RESNET, seeds=seeds, device=device)


def _signs_from(earlier: Sequence[Row] = ()) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.mask_tasks import CIFAR10, DIGITS
        from privet_research.studies.sparsification_signs import PANELS, QUICK_PANELS, run_signs_study

        task, panels = (DIGITS, QUICK_PANELS) if quick else (CIFAR10, PANELS)
        return run_signs_study(task, seeds=seeds, device=device, panels=panels, earlier=earlier)

    return run


def _records_from(network: str, epsilon: float, earlier: Sequence[Row] = ()) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies import scattering_records as records

        cell = (records.cifar10_cell if network == "cifar10" else records.fashion_cell)(epsilon)
        chosen = records.quick_cell(cell) if quick else cell
        return records.run_scattering_records(chosen, seeds=seeds, device=device, earlier=earlier)

    return run


def _records_resume(network: str, epsilon: float) -> Callable[[Sequence[Row]], Run]:
    return lambda earlier: _records_from(network, epsilon, earlier)


_RECORDS = tuple(
    Study(
        name=f"scattering-{network}-{epsilon:g}",
        description=f"{title} on scattering features at epsilon {epsilon:g}, set by held-out images; wants a GPU",
        num_seeds=5,
        run=_records_from(network, epsilon),
        table=table_of("scattering_records", "records_table"),
        resume=_records_resume(network, epsilon),
    )
    for network, title in (("cifar10", "H-CNN"), ("fashion", "H-CNN/S"))
    for epsilon in (3.0, 1.0)
)

# One study per cell, so that the cells of the whole table can run side by side.
_CELL_STUDIES = tuple(
    Study(
        name=f"sparsification-{network}-{epsilon:g}",
        description=f"random masks, no mask and a decreasing learning rate at epsilon {epsilon:g}: {what}",
        num_seeds=3,
        run=_cell_run(network, epsilon),
        table=table_of("sparsification_table", "sparsification_table"),
        vary=_cell_vary(network, epsilon),
        resume=_cell_resume(network, epsilon),
    )
    for network, what in _CELLS.items()
    for epsilon in (3.0, 1.0)
)

SPARSIFICATION = (
    *_CELL_STUDIES,
    *_RECORDS,
    Study(
        name="sparsification-signs",
        description="the benefit of random masks by noise and threshold, without noise, without clipping; wants a GPU",
        num_seeds=3,
        run=_signs_from(),
        table=table_of("sparsification_signs", "signs_table"),
        measure="train_accuracy",
        resume=_signs_from,
    ),
    Study(
        name="reconstruction-cifar10",
        description="images rebuilt from masked, noisy gradients: errors by the mask's rate; wants a GPU",
        num_seeds=1,
        run=_reconstruction_run,
        table=table_of("reconstruction", "reconstruction_table"),
        measure="mse",
    ),
    Study(
        name="reconstruction-resnet34",
        description="the same of 200 images and ResNet-34 with group norms, as the publication; a GPU",
        num_seeds=1,
        run=_resnet_reconstruction_run,
        table=table_of("reconstruction", "reconstruction_table"),
        measure="mse",
    ),
)
