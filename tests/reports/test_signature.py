"""Signatures of certificates: made with the key of the user, checked by a program that shares no code."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from privet.cli.console import run as run_command
from privet.cli.main import privet
from privet.errors import CheckpointError
from privet.reports.signature import PasswordNeeded, load_key, new_key
from scripts import verify_certificate
from scripts.verify_certificate import ORDER, is_signed

# RFC 8032, section 7.1: public key, message and signature of the first three tests.
VECTORS = (
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("key", "message", "signature"), VECTORS)
def test_the_vectors_of_the_standard_hold_and_any_change_does_not(key: str, message: str, signature: str) -> None:
    public, text, signed = bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature)
    assert is_signed(text, public_key=public, signature=signed)
    assert not is_signed(text + b"!", public_key=public, signature=signed)
    for place in (0, 31, 32, 63):
        changed = bytearray(signed)
        changed[place] ^= 1
        assert not is_signed(text, public_key=public, signature=bytes(changed))
    # The scalar must be reduced: otherwise every signature has a second form.
    larger = (int.from_bytes(signed[32:], "little") + ORDER).to_bytes(32, "little")
    assert not is_signed(text, public_key=public, signature=signed[:32] + larger)
    assert not is_signed(text, public_key=public[:-1], signature=signed)


def test_both_programs_agree_on_signatures_of_fresh_keys() -> None:
    for number in range(5):
        key = Ed25519PrivateKey.generate()
        public, message = key.public_key().public_bytes_raw(), bytes(range(number * 30))
        assert is_signed(message, public_key=public, signature=key.sign(message))
        other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        assert not is_signed(message, public_key=other, signature=key.sign(message))


def test_a_certificate_is_signed_and_the_separate_program_says_by_whom(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    run, key = Path(shutil.copytree(finished_run, tmp_path / "run")), tmp_path / "key.pem"
    assert run_command(privet, ["certify", str(run), "--new-key", str(key)]) == 0
    public = json.loads((run / "certificate.signature.json").read_text())["public_key"]
    assert public in capsys.readouterr().out
    assert verify_certificate.main([str(run), "--public-key", public]) == 0
    assert verify_certificate.main([str(run), "--public-key", "ab" * 32]) == 1
    # Again with the same key, then without: the signature of an earlier certificate does not stay behind.
    assert run_command(privet, ["certify", str(run), "--key", str(key)]) == 0
    assert verify_certificate.main([str(run), "--public-key", public]) == 0
    assert run_command(privet, ["certify", str(run)]) == 0
    assert not (run / "certificate.signature.json").exists()
    assert verify_certificate.main([str(run)]) == 0
    assert verify_certificate.main([str(run), "--public-key", public]) == 1


def test_a_signature_of_another_file_is_refused(finished_run: Path, tmp_path: Path) -> None:
    import shutil

    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    assert run_command(privet, ["certify", str(run), "--new-key", str(tmp_path / "key.pem")]) == 0
    found = (run / "certificate.json").read_text()
    (run / "certificate.json").write_text(found.replace("\n", "\n\n", 1))  # the same JSON, other bytes
    assert verify_certificate.main([str(run)]) == 1


def test_a_new_key_is_for_its_owner_only_and_replaces_no_file(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    public = new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path).public_key().public_bytes_raw().hex() == public
    with pytest.raises(CheckpointError, match="there already"):
        new_key(path)


def test_keys_of_other_kinds_and_encrypted_keys_are_told_apart(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "other.pem").write_bytes(other)
    with pytest.raises(CheckpointError, match="another kind"):
        load_key(tmp_path / "other.pem")
    (tmp_path / "text.pem").write_text("no key")
    with pytest.raises(CheckpointError, match="no private key"):
        load_key(tmp_path / "text.pem")
    new_key(tmp_path / "locked.pem", password=b"word")
    with pytest.raises(PasswordNeeded):
        load_key(tmp_path / "locked.pem")
    assert load_key(tmp_path / "locked.pem", password=b"word")
