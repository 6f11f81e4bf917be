"""Which parts of a study can be run by themselves, so that an interrupted reproduction goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from privet_research.studies.study import Row, Run, Study

if TYPE_CHECKING:
    import torch

    from privet_research.studies.clipping import ClippingSettings
    from privet_research.studies.rotation import RotationSettings

WHOLE = "whole"


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """How a study comes apart.

    Attributes:
        runs: From whether to be quick to the runs that together make the study, by name.
        by_seed: Whether every seed can be run by itself. Not so where the first seed tunes for the others.
    """

    runs: Callable[[bool], Mapping[str, Run]]
    by_seed: bool = True


def pieces_of(study: Study) -> Pieces:
    """Return how a study comes apart: seed by seed and no further, unless more is known of it."""
    if study.name in _KNOWN:
        return _KNOWN[study.name]
    tunes_once = study.name.endswith("-tuned") or study.name.startswith(
        ("sparsification-cifar10", "sparsification-svhn", "sparsification-fashion", "noise-", "augmentation-")
    )
    return Pieces(runs=lambda quick: {WHOLE: study.run}, by_seed=not tunes_once)


def _clipping(settings: Callable[[], ClippingSettings], quick_epochs: int, quick: bool) -> Mapping[str, Run]:
    """One piece per arm; temperature scaling belongs to the arm that it scales."""
    from privet_research.studies.arms import AUTOMATIC, GLOBAL, LOCAL, NON_PRIVATE

    def run(arm: str, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.clipping import run_clipping_study

        whole = settings().shortened(quick_epochs) if quick else settings()
        return run_clipping_study(whole, seeds=seeds, device=device, arms=[arm])

    return {arm: partial(run, arm) for arm in (NON_PRIVATE, LOCAL, GLOBAL, AUTOMATIC)}


def _mnist(quick: bool) -> Mapping[str, Run]:
    from privet_research.studies.catalogue import mnist_settings

    return _clipping(mnist_settings, 1, quick)


def _cifar10(quick: bool) -> Mapping[str, Run]:
    from privet_research.studies.catalogue import cifar10_settings

    return _clipping(cifar10_settings, 1, quick)


def _hidden_state(dataset: str, quick: bool) -> Mapping[str, Run]:
    """One piece per epsilon and arm; the quick ones have the larger epsilon alone."""
    from privet_research.studies.hidden_state import ARMS

    def run(arm: str, epsilon: float, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.hidden_state import Setting, run_hidden_state_study

        setting = Setting(dataset=dataset, epsilon=epsilon, epochs=2 if quick else Setting().epochs)
        return run_hidden_state_study([setting], seeds=seeds, device=device, arms=[arm])

    epsilons = (4.76,) if quick else (4.76, 1.33)
    return {f"{arm}-{epsilon:g}": partial(run, arm, epsilon) for epsilon in epsilons for arm in ARMS}


def _signs(quick: bool) -> Mapping[str, Run]:
    """One piece per panel."""
    from privet_research.studies.mask_tasks import CIFAR10, DIGITS
    from privet_research.studies.sparsification_signs import PANELS, QUICK_PANELS, Panel, run_signs_study

    def run(panel: Panel, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        return run_signs_study(DIGITS if quick else CIFAR10, seeds=seeds, device=device, panels=[panel])

    return {f"{panel.kind}, {panel.title}": partial(run, panel) for panel in (QUICK_PANELS if quick else PANELS)}


def _momentum(quick: bool) -> Mapping[str, Run]:
    """One piece per optimizer: its grid is judged as a whole."""
    from privet_research.studies.momentum_grid import METHODS, Method, run_momentum_study
    from privet_research.studies.reproduction_list import momentum_task

    def run(method: Method, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        return run_momentum_study(momentum_task(quick), seeds=seeds, device=device, methods=[method])

    return {method.title: partial(run, method) for method in METHODS}


def _small_padding(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    """The quick version of padding on CIFAR-10 with a network that two processor cores train in a minute."""
    from privet.models import tutorial_cnn
    from privet_research.studies.padding import cifar10_padding, run_padding_study

    whole = cifar10_padding()
    settings = replace(whole.shortened(), build=tutorial_cnn) if quick else whole
    return run_padding_study(settings, seeds=seeds, device=device)


def _small_rotation(
    settings: Callable[[], RotationSettings], seeds: Sequence[int], device: torch.device, quick: bool
) -> Iterator[Row]:
    """The same of rotation."""
    from privet.models import tutorial_cnn
    from privet_research.studies.rotation import run_rotation_study

    whole = settings()
    chosen = replace(whole.shortened(), build=tutorial_cnn) if quick else whole
    return run_rotation_study(chosen, seeds=seeds, device=device)


def _cifar10_rotation() -> RotationSettings:
    from privet_research.studies.rotation import cifar10_rotation

    return cifar10_rotation()


def _resnet_rotation() -> RotationSettings:
    from privet_research.studies.rotation import resnet_rotation

    return resnet_rotation()


_KNOWN: Mapping[str, Pieces] = MappingProxyType(
    {
        "clipping-mnist": Pieces(runs=_mnist),
        "clipping-cifar10": Pieces(runs=_cifar10),
        "hidden-state-mnist": Pieces(runs=partial(_hidden_state, "mnist")),
        "hidden-state-cifar10": Pieces(runs=partial(_hidden_state, "cifar10")),
        "sparsification-signs": Pieces(runs=_signs),
        "sparsification-momentum": Pieces(runs=_momentum),
        "padding-cifar10": Pieces(runs=lambda quick: {WHOLE: _small_padding}),
        "rotation-cifar10": Pieces(runs=lambda quick: {WHOLE: partial(_small_rotation, _cifar10_rotation)}),
        "rotation-cifar10-resnet18": Pieces(runs=lambda quick: {WHOLE: partial(_small_rotation, _resnet_rotation)}),
    }
)
