"""Scattering features: fixed wavelets in place of the first layers of a network.

The scattering transform (Bruna and Mallat 2013; Oyallon and Mallat 2015) convolves an image with oriented wavelets,
takes absolute values and averages, up to twice in a row. It has no parameters and treats images independently, so it is
preprocessing without privacy cost, and noise is added to the few layers after it only (Tramer and Boneh 2021). The
wavelets are those of kymatio (Andreux et al. 2020).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privet import checks
from privet.datasets.arrays import Split
from privet.datasets.data_folder import DataFolder
from privet.datasets.feature_cache import FeatureCache
from privet.datasets.info import DatasetInfo, Normalisation
from privet.errors import ArgumentError, DependencyError

_CHUNK = 512


@dataclass(frozen=True, kw_only=True)
class Scattering:
    """The scattering transform of second order.

    Attributes:
        num_scales: Number of octaves; height and width are divided by ``2 ** num_scales``.
        num_angles: Number of orientations of the wavelets.
    """

    num_scales: int = 2
    num_angles: int = 8

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "num_scales", "num_angles")

    @property
    def num_channels(self) -> int:
        """Number of features per position and colour: orders zero, one and two; 81 with the defaults."""
        scales, angles = self.num_scales, self.num_angles
        return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2

    def output_shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of the features of one image ``(colours, height, width)``.

        Raises:
            ArgumentError: the shape is not that of an image, or smaller than the widest wavelet.
        """
        side = 2**self.num_scales
        if len(image_shape) != 3 or min(image_shape[1:]) < side:
            raise ArgumentError(
                f"Scattering over {self.num_scales} octaves reads images (colours, height, width) of at least {side} "
                f"pixels a side, got {image_shape}."
            )
        colours, height, width = image_shape
        return colours * self.num_channels, height // side, width // side

    def features(
        self, images: Tensor, *, device: torch.device | None = None, cache: FeatureCache | None = None
    ) -> Tensor:
        """Return the features ``[image, channel, height, width]`` of images ``[image, colour, height, width]``.

        Guarantee:
            Every image's features depend on this image only, so a guarantee about features holds for images. Features
            and their cache are as private as the images.

        Args:
            images: Floating-point images; may be empty.
            device: Device of the computation; by default CUDA if available. The result is on the images' device.
            cache: Cache of computed features; None computes them in every call.
        """
        shape = self.output_shape(tuple(images.shape[1:]))
        if cache is None:
            return self._computed(images, shape, device)
        return cache.get(self.key(images), (len(images), *shape), lambda: self._computed(images, shape, device)).to(
            images.device
        )

    def typical_sizes(self, image_shape: tuple[int, ...], *, num_images: int = 64) -> tuple[float, ...]:
        """Return the root mean square of every channel over synthetic images with pixels of root mean square one.

        Their amplitudes decrease as one over the frequency, like those of photographs (Field 1987). No data set is
        read, so the sizes are public and can be bounds for a private normalisation.
        """
        colours, height, width = image_shape
        self.output_shape(tuple(image_shape))
        images = synthetic_photographs((height, width), num_images=checks.count("num_images", num_images))
        sizes = self.features(images).double().square().mean((0, 2, 3)).sqrt()
        return tuple(sizes.tolist()) * colours

    def key(self, images: Tensor) -> str:
        """Return the cache key: a digest of the images, these settings and the kymatio version."""
        digest = hashlib.sha256(f"{self!r} {_kymatio_version()} {images.dtype} {tuple(images.shape)}".encode())
        for piece in torch.split(images.detach().cpu(), _CHUNK):
            digest.update(piece.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _computed(self, images: Tensor, shape: tuple[int, ...], device: torch.device | None) -> Tensor:
        where = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        transform = self._transform(tuple(images.shape[2:]), where)
        found = images.new_empty(len(images), *shape)
        for start in range(0, len(images), _CHUNK):
            piece = images[start : start + _CHUNK].to(where)
            found[start : start + _CHUNK] = transform(piece.contiguous()).reshape(len(piece), *shape)
        return found

    def _transform(self, sides: tuple[int, ...], device: torch.device) -> Callable[[Tensor], Tensor]:
        try:
            # kymatio.torch also imports its 3-D part, which fails with newer versions of SciPy
            from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
        except ImportError as error:
            raise _missing() from error
        transform: Callable[[Tensor], Tensor] = ScatteringTorch2D(
            J=self.num_scales, shape=sides, L=self.num_angles, max_order=2
        ).to(device)
        return transform


def synthetic_photographs(sides: tuple[int, int], *, num_images: int) -> Tensor:
    """Return synthetic images ``[image, 1, height, width]`` with pixels of root mean square one.

    Their amplitudes decrease as one over the frequency, like those of photographs (Field 1987), and their phases are
    random. The same in every call: no data set is read, so whatever is chosen by them is public.
    """
    height, width = sides
    generator = torch.Generator().manual_seed(0)
    frequency = torch.hypot(torch.fft.fftfreq(height).unsqueeze(1), torch.fft.fftfreq(width).unsqueeze(0))
    frequency[0, 0] = 1 / max(height, width)
    noise = torch.randn(num_images, 1, height, width, generator=generator)
    images: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / frequency).real
    return images / images.square().mean().sqrt()


def _kymatio_version() -> str:
    try:
        from kymatio.version import version
    except ImportError as error:
        raise _missing() from error
    return str(version)


def _missing() -> DependencyError:
    return DependencyError(
        "Scattering features need kymatio, which is not installed. Install it with: pip install 'privet[scattering]'."
    )


Loader = Callable[[DatasetInfo, Normalisation, DataFolder], Split]


def scattered(images: DatasetInfo, load: Loader) -> Loader:
    """Return the loader of the scattering features of a data set, from the facts and the loader of its images.

    The normalisation applies to the images. Features are cached in the folder of PRIVET_CACHE if it is set.
    """

    def load_features(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
        split, cache = load(images, normalisation, folder), FeatureCache.from_environment()
        train, test = (
            replace(part, features=Scattering().features(part.features, cache=cache))
            for part in (split.train, split.test)
        )
        return Split(train=train, test=test, info=info, normalisation=normalisation)

    return load_features
