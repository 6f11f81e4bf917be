"""The studies of side effects. A study imports its code when it runs, so listing is quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from privet_research.studies.study import Row, Run, Study, table_of

if TYPE_CHECKING:
    import torch

    from privet_research.studies.padding import PaddingSettings
    from privet_research.studies.rotation import RotationSettings


def _padding_run(whole: Callable[[], PaddingSettings]) -> Callable[[Sequence[int], torch.device, bool], Iterator[Row]]:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.padding import run_padding_study

        settings = whole().shortened() if quick else whole()
        return run_padding_study(settings, seeds=seeds, device=device)

    return run


def _mnist_padding() -> PaddingSettings:
    from privet_research.studies.padding import mnist_padding

    return mnist_padding()


def _cifar10_padding() -> PaddingSettings:
    from privet_research.studies.padding import cifar10_padding

    return cifar10_padding()


def _vit_padding() -> PaddingSettings:
    from privet_research.studies.padding import vit_padding

    return vit_padding()


def _published_table(tolerance: float) -> Callable[[Sequence[Row]], str]:
    def table(rows: Sequence[Row]) -> str:
        from privet_research.studies.effects_table import published_table

        return published_table(rows, tolerance=tolerance)

    return table


def _class_size_table(rows: Sequence[Row]) -> str:
    from privet_research.studies.effects_table import class_size_table

    return class_size_table(rows, tolerance=4.0)


def _class_size_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.class_sizes import ClassSizeSettings, run_class_size_study

    whole = ClassSizeSettings()
    return run_class_size_study(whole.shortened() if quick else whole, seeds=seeds, device=device)


def _mnist_rotation() -> RotationSettings:
    from privet_research.studies.rotation import mnist_rotation

    return mnist_rotation()


def _cifar10_rotation() -> RotationSettings:
    from privet_research.studies.rotation import cifar10_rotation

    return cifar10_rotation()


def _resnet_rotation() -> RotationSettings:
    from privet_research.studies.rotation import resnet_rotation

    return resnet_rotation()


def _rotation_run(settings: Callable[[], RotationSettings]) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.rotation import run_rotation_study

        whole = settings()
        return run_rotation_study(whole.shortened() if quick else whole, seeds=seeds, device=device)

    return run


def _augmentation_run(earlier: Sequence[Row]) -> Run:
    def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
        from privet_research.studies.augmentation import AugmentationSettings, run_augmentation_study

        whole = AugmentationSettings()
        return run_augmentation_study(
            whole.shortened() if quick else whole, seeds=seeds, device=device, earlier=earlier
        )

    return run


def _freezing_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.freezing import run_freezing_study

    return run_freezing_study(seeds=seeds, device=device, quick=quick)


def _adult_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.adult import run_adult_study

    return run_adult_study(seeds=seeds, device=device, quick=quick)


def _laboratory_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.laboratory import run_laboratory

    return run_laboratory(seeds=seeds, device=device, quick=quick)


def _theorem_run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    from privet_research.studies.patch_theorems import run_theorem_study

    return run_theorem_study(seeds=seeds, device=device, quick=quick)


SIDE_EFFECTS = (
    Study(
        name="patch-theorems",
        description="theorems on two-layer networks against trained ones, in settings that did not fix their constants",
        num_seeds=5,
        run=_theorem_run,
        table=table_of("patch_theorems", "theorem_table"),
        measure="value",
    ),
    Study(
        name="feature-to-noise",
        description="two-layer networks on synthetic patches: groups, phase map, rotation, rank correlation; a minute",
        num_seeds=3,
        run=_laboratory_run,
        table=table_of("effects_table", "laboratory_table"),
    ),
    Study(
        name="padding-mnist",
        description="smaller digits at epsilon 3, clean and under attack, beside the paper's results",
        num_seeds=3,
        run=_padding_run(_mnist_padding),
        table=_published_table(2.0),
    ),
    Study(
        name="padding-cifar10",
        description="the same on CIFAR-10",
        num_seeds=3,
        run=_padding_run(_cifar10_padding),
        table=_published_table(4.0),
    ),
    Study(
        name="padding-vit",
        description="smaller digits and a vision transformer, beside the paper's results",
        num_seeds=3,
        run=_padding_run(_vit_padding),
        table=_published_table(4.0),
    ),
    Study(
        name="class-size-mnist",
        description="fewer fives at epsilon 3, 8 and 30: their accuracy, beside the paper's results",
        num_seeds=3,
        run=_class_size_run,
        table=_class_size_table,
    ),
    Study(
        name="rotation-mnist",
        description="private fine-tuning on rotated digits after public pre-training, and from scratch",
        num_seeds=3,
        run=_rotation_run(_mnist_rotation),
        table=table_of("effects_table", "rotation_table"),
    ),
    Study(
        name="rotation-cifar10",
        description="the same on CIFAR-10",
        num_seeds=3,
        run=_rotation_run(_cifar10_rotation),
        table=table_of("effects_table", "rotation_table"),
    ),
    Study(
        name="rotation-cifar10-resnet18",
        description="the same on CIFAR-10 with ResNet-18 and group norms; a GPU",
        num_seeds=3,
        run=_rotation_run(_resnet_rotation),
        table=table_of("effects_table", "rotation_table"),
    ),
    Study(
        name="augmentation-cifar10",
        description="four views of a record against one on CIFAR-10 at epsilon 3, each at its best rate; a GPU",
        num_seeds=5,
        run=_augmentation_run([]),
        table=table_of("augmentation", "augmentation_table"),
        resume=_augmentation_run,
    ),
    Study(
        name="freezing-mnist",
        description="stage-wise freezing of small weights at epsilon 3; control: the same number frozen at random",
        num_seeds=3,
        run=_freezing_run,
        table=table_of("effects_table", "freezing_table"),
    ),
    Study(
        name="adult-groups",
        description="Adult income at epsilon 1, 3, 8 and without privacy: accuracy and gaps by sex and race",
        num_seeds=3,
        run=_adult_run,
        table=table_of("effects_table", "adult_table"),
    ),
)
