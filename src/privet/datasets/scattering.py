"""Scattering features: fixed wavelets in place of the first layers of a network, which then need not be learned.

The scattering transform (Bruna and Mallat 2013; Oyallon and Mallat 2015) convolves an image with oriented wavelets,
takes absolute values, and averages, up to twice in a row. It has no parameters and looks at one image at a time, so it
is part of the data and not of the private step: it costs nothing, and noise is added to the few layers behind it only
(Tramer and Boneh 2021). The wavelets are those of kymatio (Andreux et al. 2020).
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
        num_scales: Octaves; an image loses a factor of ``2 ** num_scales`` in each direction.
        num_angles: Orientations of the wavelets.
    """

    num_scales: int = 2
    num_angles: int = 8

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        for name in ("num_scales", "num_angles"):
            object.__setattr__(self, name, checks.count(name, getattr(self, name)))

    @property
    def num_channels(self) -> int:
        """Features per place and colour: the mean, the first order and the second; 81 with the defaults."""
        scales, angles = self.num_scales, self.num_angles
        return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2

    def output_shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of the features of one image ``(colours, height, width)``.

        Raises:
            ArgumentError: something else than an image, or one that is smaller than the widest wavelet.
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
            Every image's features depend on this image alone, so a guarantee about features is one about images. They
            are as private as the images: so is a cache of them.

        Args:
            images: Floating point; no image gives no features.
            device: Where to compute; a CUDA device if there is one, by default. The result is on the images' device.
            cache: Where features that were computed before are found, and new ones kept; None computes them anew.
        """
        shape = self.output_shape(tuple(images.shape[1:]))
        if cache is None:
            return self._computed(images, shape, device)
        return cache.get(self.key(images), (len(images), *shape), lambda: self._computed(images, shape, device)).to(
            images.device
        )

    def typical_sizes(self, image_shape: tuple[int, ...], *, num_images: int = 64) -> tuple[float, ...]:
        """Return the root mean square of every channel over made-up images whose pixels have a root mean square of one.

        Their amplitudes fall as one over the frequency, as those of photographs do (Field 1987). No image of any data
        set is read, so the sizes are public: bounds for a private normalisation can be made of them.
        """
        colours, height, width = image_shape
        self.output_shape(tuple(image_shape))
        generator = torch.Generator().manual_seed(0)
        frequency = torch.hypot(torch.fft.fftfreq(height).unsqueeze(1), torch.fft.fftfreq(width).unsqueeze(0))
        frequency[0, 0] = 1 / max(height, width)
        noise = torch.randn(checks.count("num_images", num_images), 1, height, width, generator=generator)
        images = torch.fft.ifft2(torch.fft.fft2(noise) / frequency).real
        images = images / images.square().mean().sqrt()
        sizes = self.features(images).double().square().mean((0, 2, 3)).sqrt()
        return tuple(sizes.tolist()) * colours

    def key(self, images: Tensor) -> str:
        """Name the features by everything they follow from: the images' contents, these settings, and kymatio."""
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
            # kymatio.torch would import its 3-D part as well, which newer SciPy no longer has the functions for
            from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
        except ImportError as error:
            raise _missing() from error
        transform: Callable[[Tensor], Tensor] = ScatteringTorch2D(
            J=self.num_scales, shape=sides, L=self.num_angles, max_order=2
        ).to(device)
        return transform


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
    """Return the loader of the scattering features of a data set, given its facts and its loader.

    The normalisation is that of the images. Features are kept in the folder named by PRIVET_CACHE, if there is one.
    """

    def load_features(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
        split, cache = load(images, normalisation, folder), FeatureCache.from_environment()
        train, test = (
            replace(part, features=Scattering().features(part.features, cache=cache))
            for part in (split.train, split.test)
        )
        return Split(train=train, test=test, info=info, normalisation=normalisation)

    return load_features
