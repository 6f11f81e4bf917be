"""Scattering features: their shapes, what they are blind to, and the cache that keeps them."""

from __future__ import annotations

import logging
import os
import stat
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from privet.datasets import describe, load
from privet.datasets.feature_cache import FeatureCache
from privet.datasets.scattering import Scattering, scattered
from privet.errors import ArgumentError, DependencyError

pytest.importorskip("kymatio")


def images(number: int = 5, colours: int = 1, side: int = 28, seed: int = 0) -> Tensor:
    return torch.rand(number, colours, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("shape", "expected"), [((3, 32, 32), (243, 8, 8)), ((1, 28, 28), (81, 7, 7))], ids=["colour", "grey"]
)
def test_the_features_have_the_published_shape(shape: tuple[int, int, int], expected: tuple[int, ...]) -> None:
    found = Scattering().features(images(2, shape[0], shape[1]))
    assert Scattering().output_shape(shape) == tuple(found.shape[1:]) == expected
    assert bool(found.isfinite().all())


def test_the_described_shapes_are_those_of_the_transform() -> None:
    for name in ("mnist", "fashion_mnist", "fashion_mnist_small", "cifar10", "svhn"):
        assert describe(f"{name}_scattering").input_shape == Scattering().output_shape(describe(name).input_shape)


def test_typical_sizes_are_public_positive_and_the_same_for_every_colour() -> None:
    grey, colour = (Scattering().typical_sizes((colours, 32, 32), num_images=8) for colours in (1, 3))
    assert len(grey) == 81
    assert colour == grey * 3
    assert min(grey) > 0
    assert grey == Scattering().typical_sizes((1, 32, 32), num_images=8), "no randomness that is not fixed"
    first, second = sum(grey[1:17]) / 16, sum(grey[17:]) / 64
    assert grey[0] > first > second, "the order of the transform decides about the size"


def test_a_constant_image_has_its_mean_and_nothing_else() -> None:
    found = Scattering().features(torch.full((1, 1, 32, 32), 0.7))[0]
    torch.testing.assert_close(found[0], torch.full((8, 8), 0.7), rtol=1e-4, atol=1e-4)
    assert float(found[1:].abs().max()) < 1e-3


def test_twice_the_light_gives_twice_the_features_and_averages_of_absolute_values_are_not_negative() -> None:
    batch = images()
    found, doubled = Scattering().features(batch), Scattering().features(2 * batch)
    torch.testing.assert_close(doubled, 2 * found, rtol=1e-4, atol=1e-5)
    assert float(found[:, 1:].min()) > -1e-5, "averages of absolute values"


def test_a_shift_by_one_pixel_changes_features_less_than_pixels() -> None:
    batch = images(4, 1, 32)
    moved = batch.roll(1, dims=3)
    features = [Scattering().features(each)[..., 1:-1, 1:-1] for each in (batch, moved)]
    change = float((features[0] - features[1]).norm() / features[0].norm())
    assert change < 0.25 * float((batch - moved).norm() / batch.norm())


def test_every_image_is_transformed_by_itself() -> None:
    batch = images(6)
    changed = batch.clone()
    changed[5] = 1 - changed[5]
    first, second = (Scattering().features(each) for each in (batch, changed))
    assert torch.equal(first[:5], second[:5])
    assert not torch.equal(first[5], second[5])
    assert Scattering().features(batch[:0]).shape == (0, 81, 7, 7)


@pytest.mark.parametrize("shape", [(1, 3, 28), (28, 28), (1, 28, 2)], ids=["low", "flat", "narrow"])
def test_what_is_no_image_or_too_small_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="at least 4 pixels"):
        Scattering().output_shape(shape)


def test_without_kymatio_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kymatio.scattering2d.frontend.torch_frontend", None)
    with pytest.raises(DependencyError, match=r"privet\[scattering\]"):
        Scattering().features(images(1))


def test_cached_features_are_those_that_were_computed_and_are_for_their_owner_alone(tmp_path: Path) -> None:
    cache, batch = FeatureCache(folder=tmp_path / "cache"), images()
    first = Scattering().features(batch, cache=cache)
    (path,) = cache.folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    before = path.stat().st_mtime_ns
    assert torch.equal(Scattering().features(batch, cache=cache), first)
    assert path.stat().st_mtime_ns == before, "read, not written again"


def test_other_images_and_other_settings_have_other_keys() -> None:
    batch = images()
    changed = batch.clone()
    changed[3, 0, 5, 5] += 1e-6
    keys = {Scattering().key(batch), Scattering().key(changed), Scattering().key(batch.double())}
    keys |= {Scattering(num_angles=4).key(batch), Scattering().key(batch.reshape(5, 1, 14, 56))}
    assert len(keys) == 5
    assert Scattering().key(batch.clone()) in keys


def test_a_damaged_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, batch = FeatureCache(folder=tmp_path), images(2)
    first = Scattering().features(batch, cache=cache)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with caplog.at_level(logging.WARNING, logger="privet"):
        assert torch.equal(Scattering().features(batch, cache=cache), first)
    assert "cannot be read" in caplog.text
    assert path.stat().st_size > 100


def test_a_folder_that_cannot_be_written_is_reported_and_the_features_returned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, logger="privet"):
        found = Scattering().features(images(1), cache=FeatureCache(folder=tmp_path / "file" / "cache"))
    assert found.shape == (1, 81, 7, 7)
    assert "could not be kept" in caplog.text


def test_nothing_is_kept_unless_a_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRIVET_CACHE", raising=False)
    assert FeatureCache.from_environment() is None
    monkeypatch.setenv("PRIVET_CACHE", str(tmp_path))
    assert FeatureCache.from_environment() == FeatureCache(folder=tmp_path)


def test_a_scattered_data_set_keeps_labels_and_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVET_CACHE", str(tmp_path))
    info = describe("fashion_mnist_small")
    whole = load("fashion_mnist_small", normalisation="standardized")

    def few(*_: object) -> object:
        parts = {
            name: type(part)(features=part.features[:7], labels=part.labels[:7])
            for name, part in (("train", whole.train), ("test", whole.test))
        }
        return type(whole)(**parts, info=info, normalisation=whole.normalisation)

    named = describe("fashion_mnist_small_scattering")
    found = scattered(info, few)(named, whole.normalisation, None)  # type: ignore[arg-type]
    assert found.info is named
    assert found.normalisation.name == "standardized"
    assert torch.equal(found.train.labels, whole.train.labels[:7])
    assert torch.equal(found.test.features, Scattering().features(whole.test.features[:7]))
    assert len(os.listdir(tmp_path)) == 2
