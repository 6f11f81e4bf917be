"""What an attacker rebuilds of an image from its gradient, against the rate of the mask and the noise on it.

Figure 5 of Zhu and Blaschko (2023) attacks 200 images of CIFAR-10 by Inverting Gradients (Geiping et al. 2020) under
noise of 1e-3, and its error grows with the rate. Whether 1e-3 is the noise's standard deviation or its variance is not
said: both are here, and no noise. The attack is the stronger, adaptive one, which knows the mask. The network is as it
is initialised, where gradients say most: ResNet-34 with group norms for the figure, and DP-CNN, which leaks far more.
The images are public: nothing here is private or needs to be.
"""

from __future__ import annotations

import base64
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor, nn
from torch.nn import functional

from privet.attacks.reconstruction.methods import InvertingGradients, image_similarity
from privet.datasets import load
from privet.effects.sparsification import per_example_gradients
from privet.models import dp_cnn
from privet_research.studies.markdown import markdown
from privet_research.studies.residual_networks import resnet34

Row = dict[str, Any]
_CHUNK = 16
# Between the seeds of two groups of images: more than a study has seeds.
_SEEDS = 10_000
_VARIANCE_READING = math.sqrt(1e-3)


@dataclass(frozen=True, kw_only=True)
class ReconstructionSettings:
    """Sizes of the study.

    Attributes:
        num_images: Attacked at once, for every seed other ones.
        num_steps: Of the attack.
        rates: Of the mask, by the standard deviation of the noise on the gradient.
        num_pictures: Reconstructions that are kept for looking at.
        dataset: Whose test images are attacked.
        build: Makes the network.
        at_once: Images whose gradients are in memory together.
    """

    num_images: int = 64
    num_steps: int = 800
    rates: Mapping[float, tuple[float, ...]]
    num_pictures: int = 8
    dataset: str = "cifar10"
    build: Callable[[], nn.Module] = field(default=lambda: dp_cnn())
    at_once: int = 64


FULL = ReconstructionSettings(
    rates={0.0: (0.0, 0.9, 0.99), 1e-3: (0.0, 0.3, 0.5, 0.7, 0.9, 0.99), _VARIANCE_READING: (0.0, 0.9)}
)
RESNET = ReconstructionSettings(num_images=200, rates={0.0: (0.0,), 1e-3: (0.0, 0.5, 0.9)}, build=resnet34, at_once=20)
QUICK = ReconstructionSettings(num_images=4, num_steps=60, rates={1e-3: (0.0, 0.9)}, num_pictures=4)


def run_reconstruction_study(
    settings: ReconstructionSettings, *, seeds: Sequence[int], device: torch.device
) -> Iterator[Row]:
    """Attack the images of every seed under every noise and rate; yield one row of figures as each is known."""
    part = load(settings.dataset).test
    for seed in seeds:
        where = slice(seed * settings.num_images, (seed + 1) * settings.num_images)
        images, labels = part.features[where].to(device), part.labels[where].to(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = settings.build().to(device).eval()
        originals = {"originals": encoded(images[: settings.num_pictures])}
        for noise_std, rates in settings.rates.items():
            for rate in rates:
                began = time.monotonic()
                found, norms = _rebuilt(model, images, labels, noise_std, rate, seed, settings)
                yield {
                    "arm": f"noise {noise_std:.2g}, rate {rate:g}",
                    "noise_std": noise_std,
                    "rate": rate,
                    "seed": seed,
                    "num_steps": settings.num_steps,
                    **_figures(found, images),
                    "gradient_norm": float(norms.mean()),
                    "pictures": encoded(found[: settings.num_pictures]),
                    **originals,
                    "seconds": round(time.monotonic() - began, 1),
                    "device": device.type,
                }
                originals = {}  # once for all rows of a seed


def _rebuilt(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    noise_std: float,
    rate: float,
    seed: int,
    settings: ReconstructionSettings,
) -> tuple[Tensor, Tensor]:
    """Return what the attack finds of all images, group after group, and the lengths of their gradients."""
    found, norms = [], []
    starts = range(0, len(images), settings.at_once)
    for place, start in enumerate(starts):
        own, truth = images[start : start + settings.at_once], labels[start : start + settings.at_once]
        gradients = torch.cat(
            [
                per_example_gradients(model, _losses, inputs, targets)
                for inputs, targets in zip(torch.split(own, _CHUNK), torch.split(truth, _CHUNK), strict=True)
            ]
        )
        # Noise and masks of another group are other ones.
        draw = seed + place * _SEEDS
        observed, keep = _observed(gradients, noise_std, rate, draw)
        attack = InvertingGradients(num_steps=settings.num_steps)
        shape = tuple(images.shape[1:])
        found.append(attack.attack(model, _losses, observed, truth, shape, keep=keep, seed=draw).images)
        norms.append(gradients.norm(dim=1))
    return torch.cat(found), torch.cat(norms)


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _observed(gradients: Tensor, noise_std: float, rate: float, seed: int) -> tuple[Tensor, Tensor]:
    """Add noise, and mask the given share of the coordinates of every gradient, others for every image."""
    generator = torch.Generator(gradients.device).manual_seed(seed)
    noise = torch.randn(gradients.shape, generator=generator, device=gradients.device)
    order = torch.rand(gradients.shape, generator=generator, device=gradients.device).argsort(1)
    keep = order >= math.floor(rate * gradients.shape[1])
    return (gradients + noise_std * noise) * keep, keep


def _figures(found: Tensor, images: Tensor) -> Row:
    similarity = image_similarity(found, images)
    return {
        "mse": float(similarity.mse.mean()),
        "mse_by_image": [round(value, 6) for value in similarity.mse.tolist()],
        "psnr": float(similarity.psnr.mean()),
        "psnr_by_image": [round(value, 4) for value in similarity.psnr.tolist()],
        "ssim": float(similarity.ssim.mean()),
        "ssim_by_image": [round(value, 6) for value in similarity.ssim.tolist()],
    }


def encoded(images: Tensor) -> list[str]:
    """Return images ``[image, colour, height, width]`` from 0 to 1 as base64 of one byte per number."""
    values = (images.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu()
    return [base64.b64encode(image.numpy().tobytes()).decode() for image in values]


def decoded(texts: Sequence[str], shape: tuple[int, int, int] = (3, 32, 32)) -> Tensor:
    """Return the images that :func:`encoded` wrote."""
    return torch.stack(
        [torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).reshape(shape) for text in texts]
    ).div(255.0)


def reconstruction_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: a line per noise and rate, and what a rate changes against none, image by image."""
    arms = dict.fromkeys((row["noise_std"], row["rate"]) for row in rows)
    head = ["noise", "rate", "images", "MSE", "PSNR, dB", "SSIM", "MSE over that at rate 0"]
    lines = [head]
    for noise_std, rate in sorted(arms):
        own = _of(rows, noise_std, rate)
        values = [value for row in own for value in row["mse_by_image"]]
        psnr, ssim = (statistics.fmean(row[key] for row in own) for key in ("psnr", "ssim"))
        shown = [f"{noise_std:.2g}", f"{rate:g}", str(len(values)), f"{statistics.fmean(values):.4f}"]
        change = _change(own, _of(rows, noise_std, 0.0)) if rate else ""
        lines.append([*shown, f"{psnr:.1f}", f"{ssim:.3f}", change])
    table = markdown(lines)
    return f"{table}\n\n{_finding(rows)}\n"


def _of(rows: Sequence[Mapping[str, Any]], noise_std: float, rate: float) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["noise_std"] == noise_std and row["rate"] == rate]


def _gaps(own: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> list[float]:
    others = {row["seed"]: row["mse_by_image"] for row in base}
    pairs = [(row["mse_by_image"], others[row["seed"]]) for row in own if row["seed"] in others]
    return [first - second for mine, theirs in pairs for first, second in zip(mine, theirs, strict=True)]


def _change(own: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> str:
    gaps = _gaps(own, base)
    return f"{statistics.fmean(gaps):+.4f} ± {_margin(gaps):.4f}" if len(gaps) > 1 else ""


def _margin(values: Sequence[float]) -> float:
    """Half the 95 % interval of a mean."""
    return float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))


def _finding(rows: Sequence[Mapping[str, Any]]) -> str:
    sentences = ["Intervals are 95 %, over images."]
    for noise_std in sorted({row["noise_std"] for row in rows}):
        rates = sorted({row["rate"] for row in rows if row["noise_std"] == noise_std})
        gaps = _gaps(_of(rows, noise_std, rates[-1]), _of(rows, noise_std, 0.0))
        if rates[-1] == 0 or len(gaps) < 2:
            continue
        mean, margin = statistics.fmean(gaps), _margin(gaps)
        verdict = "rises" if mean > margin else "falls" if mean < -margin else "does not surely change"
        sentences.append(f"Under noise {noise_std:.2g} the error {verdict} from rate 0 to {rates[-1]:g}.")
    return " ".join(sentences)
