"""An Ed25519 signature (RFC 8032) of a certificate, by a key of the user's: who it was that issued it.

The signature is over the bytes of ``certificate.json`` and lies beside it. The guarantee needs none: everything in a
certificate can be computed again from the ledger. It shows that the holder of the key stands by this very file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from privet.errors import CheckpointError
from privet.reports.certificate_page import JSON_NAME
from privet.runs.run_files import write_json

SIGNATURE_NAME = "certificate.signature.json"
_MAX_BYTES = 2**16


class PasswordNeeded(CheckpointError):
    """The key is encrypted, and no password was given."""


def new_key(path: str | Path, *, password: bytes | None = None) -> str:
    """Write a new private key as PEM, readable by its owner only, and return its public key in hex digits.

    Raises:
        CheckpointError: the file is there already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    secret = NoEncryption() if password is None else BestAvailableEncryption(password)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    except FileExistsError:
        raise CheckpointError(f"{path} is there already, and a key is never replaced. Name another file.") from None
    except OSError as error:
        raise CheckpointError(f"The key {path} cannot be written: {error.strerror}.") from None
    return _public(key)


def load_key(path: str | Path, *, password: bytes | None = None) -> Ed25519PrivateKey:
    """Read a private key.

    Raises:
        PasswordNeeded: it is encrypted.
        CheckpointError: it cannot be read, or is no Ed25519 key. The message shows nothing of its content.
    """
    try:
        content = Path(path).read_bytes()
        key = load_pem_private_key(content[:_MAX_BYTES], password=password)
    except OSError as error:
        raise CheckpointError(f"The key {path} cannot be read: {error.strerror}.") from None
    except TypeError:
        raise PasswordNeeded(f"The key {path} is encrypted, and needs its password.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise CheckpointError(
            f"{path} is no private key in PEM form, or its password is another. Make one with: privet certify RUN "
            "--new-key key.pem, or openssl genpkey -algorithm ed25519."
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise CheckpointError(f"{path} is a key of another kind. Certificates are signed with Ed25519.")
    return key


def sign_certificate(folder: str | Path, key: Ed25519PrivateKey) -> tuple[Path, str]:
    """Sign the certificate in a folder; return the path of the signature, and the public key in hex digits."""
    target = Path(folder)
    signed = (target / JSON_NAME).read_bytes()
    public = _public(key)
    values: dict[str, Any] = {
        "schema": "privet signature",
        "algorithm": "Ed25519",
        "file": JSON_NAME,
        "public_key": public,
        "signature": key.sign(signed).hex(),
    }
    write_json(target / SIGNATURE_NAME, values)
    return target / SIGNATURE_NAME, public


def copy_signature(source: Path, target: Path) -> bool:
    """Copy the signature of a folder to another that holds the same certificate; return whether there was one."""
    if not (source / SIGNATURE_NAME).is_file() or not (source / JSON_NAME).is_file():
        return False
    if (source / JSON_NAME).read_bytes() != (target / JSON_NAME).read_bytes():
        return False
    write_json(target / SIGNATURE_NAME, json.loads((source / SIGNATURE_NAME).read_text("utf-8")))
    return True


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
