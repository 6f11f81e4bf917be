"""Files made to hurt: none runs code, none leads out of its folder, and every refusal is one of the library's own."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import os
import pickle  # noqa: TID251 (the attack itself)
import random
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from privet.accounting.ledger import Ledger, LedgerHead
from privet.datasets.own.declared_images import DeclaredImages
from privet.datasets.own.own_images import decode_image
from privet.datasets.readers import ArrayDeclaration, read_cifar10_bin, read_idx, read_npz
from privet.datasets.tables import CsvSchema, NumberColumn, read_csv
from privet.errors import PrivetError
from privet.plan import Plan
from privet.reports.long_tail_pictures import read_picture
from privet.runs import runner
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.run_files import RunFiles, read_json, read_lines
from privet.runs.user_models import build_referenced
from privet.training.checkpoint import as_bytes, contents, load_checkpoint, write_checkpoint
from privet_research.reproduction.running import as_csv
from tests.accounting.ledgers import done
from tests.training.tools import poisson

FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pickle.find_class",
    "socket.connect", "ctypes.dlopen", "shutil.rmtree", "os.remove", "os.rename",
)  # fmt: skip
SMALL = 1_000_000


class _Watch:
    """What the interpreter was asked to do while a file was read. A hook cannot be removed, so there is one."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self.is_on and (event in FORBIDDEN or (event == "open" and _writes(args))):
            self.seen.append(event)

    @contextmanager
    def on(self) -> Iterator[list[str]]:
        self.seen, self.is_on = [], True
        try:
            yield self.seen
        finally:
            self.is_on = False


def _writes(args: tuple[Any, ...]) -> bool:
    flags = args[2] if len(args) > 2 and isinstance(args[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


WATCH = _Watch()


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch canary",)


def packed(members: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return content.getvalue()


def npy(header: str, data: bytes = b"") -> bytes:
    line = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + data


def tensors(header: bytes, data: bytes = b"", *, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if claimed is None else claimed) + header + data


def objects() -> bytes:
    content = io.BytesIO()
    np.save(content, np.array([Evil()], dtype=object), allow_pickle=True)
    return content.getvalue()


def torch_file() -> bytes:
    content = io.BytesIO()
    torch.save({"model": Evil()}, content)  # noqa: TID251 (the attack itself)
    return content.getvalue()


PICKLE = pickle.dumps(Evil())
FLAT = 8 * 10**6
DEEP = b"[" * 200_000 + b"]" * 200_000
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
DECLARED = {"x": ArrayDeclaration(dtype="<f4", shape=(None,))}
SCHEMA = CsvSchema(columns=(NumberColumn(name="a", low=0.0, high=1.0, default=0.0),))


def weights(path: Path) -> object:
    runner._load_weights(nn.Linear(2, 2), RunFiles(folder=path.parent))
    return None


def opened_ledger(path: Path) -> object:
    with Ledger.open(path, plan_hash="plan") as ledger:
        return ledger.head


def drawn_picture(path: Path) -> object:
    return read_picture(RunFiles(folder=path.parent).long_tail)


OPENERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "checkpoint": ("checkpoint.safetensors", load_checkpoint),
    "model": ("model.safetensors", weights),
    "ledger": ("ledger.jsonl", Ledger.read),
    "held ledger": ("ledger.jsonl", opened_ledger),
    "npz": ("data.npz", lambda path: read_npz(path, DECLARED, max_bytes=SMALL)),
    "idx": ("images", lambda path: read_idx(path, max_bytes=SMALL)),
    "idx.gz": ("images.gz", lambda path: read_idx(path, max_bytes=SMALL)),
    "idx.xz": ("images.xz", lambda path: read_idx(path, max_bytes=SMALL)),
    "cifar": ("batch.bin", lambda path: read_cifar10_bin(path, num_records=1)),
    "csv": ("table.csv", lambda path: read_csv(path, SCHEMA, max_bytes=SMALL)),
    "csv.gz": ("table.csv.gz", lambda path: read_csv(path, SCHEMA, max_bytes=SMALL)),
    "recipe": ("recipe.toml", load_recipe),
    "json": ("plan.json", lambda path: Plan.from_dict(read_json(path))),
    "lines": ("unprotected.jsonl", lambda path: list(read_lines(path))),
    "drawn picture": ("long_tail.png", drawn_picture),
}
IDX_CLAIM = bytes([0, 0, 8, 3]) + b"\xff" * 12
FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "pickle as a checkpoint": ("checkpoint", lambda: PICKLE),
    "torch file as a checkpoint": ("checkpoint", torch_file),
    "pickle as a model": ("model", lambda: PICKLE),
    "torch file as a model": ("model", torch_file),
    "header of exabytes": ("checkpoint", lambda: tensors(HEADER, claimed=2**63)),
    "header longer than the file": ("model", lambda: tensors(HEADER, claimed=2**30)),
    "header that is no JSON": ("checkpoint", lambda: tensors(b"{'w': __import__('os')}")),
    "header nested deeply": ("checkpoint", lambda: tensors(DEEP)),
    "tensor outside of its file": ("model", lambda: tensors(HEADER.replace(b"[0, 8]", b"[0, 8000]"))),
    "tensors that overlap": (
        "model",
        lambda: tensors(b'{"a":' + HEADER[5:-1] + b',"b":' + HEADER[5:-1] + b"}", b"\0" * 8),
    ),
    "shape that overflows": ("model", lambda: tensors(HEADER.replace(b"[2]", b"[4294967296, 4294967296]"), b"\0" * 8)),
    "facts of a stranger": (
        "checkpoint",
        lambda: safetensors.torch.save({"w": torch.zeros(2)}, {"privet": '{"format": 1}', "digest": "0"}),
    ),
    "empty checkpoint": ("checkpoint", lambda: b""),
    "pickle as a ledger": ("ledger", lambda: PICKLE),
    "endless line": ("ledger", lambda: b'{"body":{' + b" " * 10**7),
    "ledger nested deeply": ("held ledger", lambda: b'{"body":' + DEEP + b"}\n"),
    "object array": ("npz", lambda: packed({"x.npy": objects()})),
    "array header that is code": ("npz", lambda: packed({"x.npy": npy("__import__('os').system('touch canary')")})),
    "array of terabytes": (
        "npz",
        lambda: packed({"x.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10**12,), }")}),
    ),
    "zip bomb": (
        "npz",
        lambda: packed(
            {"x.npy": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({FLAT // 4},), }}", b"\0" * FLAT)}
        ),
    ),
    "member that climbs": ("npz", lambda: packed({"../../canary": b"x", "/canary": b"x", "x.npy": b""})),
    "zip of pickles": ("npz", lambda: packed({"x.npy": PICKLE})),
    "idx of terabytes": ("idx", lambda: IDX_CLAIM),
    "gz bomb": ("idx.gz", lambda: gzip.compress(bytes([0, 0, 8, 1]) + FLAT.to_bytes(4, "big") + b"\0" * FLAT)),
    "xz bomb": ("idx.xz", lambda: lzma.compress(bytes([0, 0, 8, 1]) + FLAT.to_bytes(4, "big") + b"\0" * FLAT)),
    "cut off gz": ("idx.gz", lambda: gzip.compress(b"\0" * 1000)[:-9]),
    "gz of text": ("csv.gz", lambda: gzip.compress(b"a\n" + b"0\n" * SMALL)),
    "pickle as images": ("cifar", lambda: PICKLE),
    "table too large": ("csv", lambda: b"a\n" + b"0.5\n" * SMALL),
    "pickle as a table": ("csv", lambda: PICKLE),
    "pickle as a recipe": ("recipe", lambda: PICKLE),
    "yaml that runs code": ("recipe", lambda: b"!!python/object/apply:os.system ['touch canary']\n"),
    "yaml of a billion laughs": ("recipe", lambda: b"a: &a [x, x]\nb: &b [*a, *a]\n"),
    "recipe nested deeply": ("recipe", lambda: b"a = " + b"[" * 5000 + b"]" * 5000),
    "recipe of code as a model": ("recipe", lambda: b'dataset = "mnist"\nmodel = "os:system"\n'),
    "recipe that climbs": ("recipe", lambda: b'dataset = "../../etc/passwd"\nmodel = "dp_cnn"\n'),
    "plan with a key twice": ("json", lambda: b'{"delta": 1e-5, "delta": 1}'),
    "plan that is not a number": ("json", lambda: b'{"delta": NaN}'),
    "plan nested deeply": ("json", lambda: b'{"delta": ' + DEEP + b"}"),
    "plan with an endless number": ("json", lambda: b'{"delta": ' + b"9" * 5000 + b"}"),
    "pickle as lines": ("lines", lambda: PICKLE + b"\n"),
    "pickle as a drawn picture": ("drawn picture", lambda: PICKLE),
    "page as a drawn picture": ("drawn picture", lambda: b"<svg onload=alert(1)>"),
    "drawn picture too large": ("drawn picture", lambda: b"\x89PNG\r\n\x1a\n" + b"\0" * FLAT),
}


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a picture that claims a size, whatever it holds."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


PICTURES: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: PICKLE,
    "torch file": torch_file,
    "picture of terabytes": lambda: png(2**20, 2**20),
    "picture of a negative size": lambda: png(2**31 + 5, 2),
    "picture bomb": lambda: png(60_000, 60_000, b"\0" * FLAT),
    "picture without its pixels": lambda: png(20, 20),
    "page with a script": lambda: b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "postscript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(touch canary) system\n",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    return tmp_path / "inner"


def left_behind(place: Path) -> list[str]:
    return sorted(path.name for path in place.parent.rglob("canary*"))


def test_the_watch_sees_what_it_watches_for(place: Path) -> None:
    with WATCH.on() as seen:
        pickle.loads(PICKLE)
        (place / "written").write_text("x")
    assert {"os.system", "pickle.find_class", "open"} <= set(seen)
    assert left_behind(place) == ["canary"]


def test_there_are_at_least_thirty_files() -> None:
    assert len(FILES) + len(LINKS) >= 40


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_and_runs_nothing(
    name: str, place: Path, record_property: Callable[[str, object], None]
) -> None:
    opener, build = FILES[name]
    file, read = OPENERS[opener]
    (place / file).write_bytes(build())
    with WATCH.on() as seen, pytest.raises(PrivetError):
        read(place / file)
    assert [event for event in seen if opener != "held ledger" or event != "open"] == []
    assert left_behind(place) == []
    record_property("files refused", name)


@pytest.mark.parametrize("name", PICTURES)
def test_a_hostile_picture_among_the_records_is_passed_over_and_runs_nothing(
    name: str, place: Path, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("PIL.Image")
    declared = DeclaredImages(classes=("a", "b"), height=4, width=4, channels=1)
    (place / "image.png").write_bytes(png(2, 2, bytes(6)))
    assert decode_image(place / "image.png", declared) is not None  # what a decoder loads at first is not the file's
    (place / "image.png").write_bytes(PICTURES[name]())
    with WATCH.on() as seen:
        assert decode_image(place / "image.png", declared) is None
    assert seen == []
    assert left_behind(place) == []
    record_property("files refused", f"{name} as a record")


LINKS = {name: OPENERS[name] for name in ("checkpoint", "ledger", "held ledger", "json", "lines", "drawn picture")}


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_what_is_no_file_is_refused_and_never_followed(name: str, kind: str, place: Path) -> None:
    file, read = LINKS[name]
    path = place / file
    (place.parent / "secret").write_text('{"a": 1}\n')
    if kind == "link":
        path.symlink_to(place.parent / "secret")
    elif kind == "dangling link":
        path.symlink_to(place.parent / "canary")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    if name in ("checkpoint", "drawn picture") and kind == "dangling link":
        assert read(path) is None, "a link to nothing is nothing"
        return
    with pytest.raises(PrivetError) as refusal:
        read(path)
    assert '"a"' not in str(refusal.value)
    assert left_behind(place) == []


@pytest.mark.parametrize("reference", ["os:system", "../x.py:build", "canary.py:build", ":f", "x:", "builtins:exec"])
def test_a_network_named_by_a_stranger_is_refused_in_the_librarys_words(reference: str, place: Path) -> None:
    with pytest.raises(PrivetError):
        build_referenced(reference)
    assert left_behind(place) == []


FORMULAS = ("=cmd|'/C calc'!A1", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "=1\r=2")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_word_of_a_written_table_is_a_formula(text: str, record_property: Callable[[str, object], None]) -> None:
    written = as_csv([{"arm": text, text: 1.0, "loss": -0.5}])
    rows = list(csv.reader(io.StringIO(written, newline="")))
    shown = "'" + text.replace("\r", " ")
    assert rows == [["arm", shown, "loss"], [shown, "1.0", "-0.5"]]
    record_property("formulas disarmed", text)


# --------------------------------------------------------------------------------------------------------------- fuzz


def bases(place: Path) -> dict[str, bytes]:
    """Return one sound file for every reader."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    head = LedgerHead(seq=1, sha256="0" * 64)
    found = contents(
        model=model, optimizer=optimizer, step=1, steps_taken=1, head=head, plan_hash="plan", clipping={}, average={}
    )
    write_checkpoint(place / "sound.safetensors", as_bytes(*found))
    plan = poisson()
    with Ledger.create(place / "sound.jsonl", plan=plan.to_dict(), plan_hash="plan") as ledger:
        ledger.reserve(plan.round_event, 3)
        ledger.check(done(plan.round_event))
    array = io.BytesIO()
    np.savez_compressed(array, x=np.arange(4, dtype="<f4"))
    idx = bytes([0, 0, 8, 2]) + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(6))
    ledger_bytes = (place / "sound.jsonl").read_bytes()
    return {
        "checkpoint": (place / "sound.safetensors").read_bytes(),
        "model": safetensors.torch.save(model.state_dict()),
        "ledger": ledger_bytes,
        "held ledger": ledger_bytes,
        "npz": array.getvalue(),
        "idx": idx,
        "idx.gz": gzip.compress(idx, mtime=0),
        "idx.xz": lzma.compress(idx),
        "cifar": bytes(3073),
        "csv": b"a,b\n0.5,x\n1e400,nan\n",
        "csv.gz": gzip.compress(b"a,b\n0.5,x\n", mtime=0),
        "recipe": (Path(runner.__file__).parents[1] / "recipes" / "demo.toml").read_bytes(),
        "json": json.dumps(plan.to_dict()).encode(),
        "lines": b'{"step": 1, "loss": 0.5}\n' * 3,
        "drawn picture": png(2, 2, bytes(6)),
    }


WORDS = (b"", b"\0", b"\xff" * 9, b"[" * 50, b'"', b"9" * 400, b"-1", b"1e999", b"NaN", b"null", b"true", b"{}", b"\n")


def mutated(content: bytes, chance: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        where = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0:
                found[where : where + 1] = bytes([chance.randrange(256)])
            case 1:
                found[where : where + chance.randint(0, 40)] = chance.choice(WORDS)
            case 2:
                del found[where:]
            case 3:
                found[where:where] = found[chance.randrange(len(found) + 1) :][:60]
            case _:
                if found:
                    found[where % len(found)] ^= 1 << chance.randrange(8)
    return bytes(found)


@pytest.mark.parametrize("num", [30, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPENERS)
def test_damaged_files_are_read_or_refused_in_the_librarys_words(
    name: str, num: int, place: Path, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(f"{name} {num}")
    sound = bases(place)[name]
    file, read = OPENERS[name]
    refused = 0
    (place / file).write_bytes(sound)
    read(place / file)
    for _ in range(num):
        (place / file).write_bytes(mutated(sound, chance))
        try:
            read(place / file)
        except PrivetError:
            refused += 1
    assert refused > 0
    assert left_behind(place) == []
    record_property("damaged inputs", num)
    record_property("untyped exceptions", 0)
