"""Ed25519 keys, in PEM files outside the journal's database."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from asched.proof import KeyFileError, ProofError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# Functions import cryptography: most processes open journals without keys, and it takes 60 ms.

TRUSTED_KEY_ENV: Final = "ASCHED_TRUSTED_KEY"
"""Names files of public keys. One of them must have signed each journal that is read."""
_KEY_FILE_LIMIT_BYTES: Final = 64 * 1024


class PublicKey:
    """The public half of a key, which verifies signatures."""

    def __init__(self, raw: bytes) -> None:
        """``raw``: 32 bytes. Raises ValueError for another length."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self._key = Ed25519PublicKey.from_public_bytes(raw)
        self.id = sha256(raw).hexdigest()[:32]
        """Its fingerprint: the first half of the SHA-256 of its bytes, in hex digits."""
        self.text = base64.b64encode(raw).decode()

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """The key with this :attr:`text`. Raises :class:`ProofError`."""
        try:
            return cls(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise ProofError(f"{text[:80]!r} is not an Ed25519 public key in base64") from None

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """The key in a PEM file; of a private key, its public half. Raises KeyFileError."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        content = _read(path)
        if b"PRIVATE KEY" in content:
            return _private_key(path, content).public_key
        try:
            key = load_pem_public_key(content)
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise KeyFileError(f"{path}: expected an Ed25519 key in PEM (asched journal keygen)")
        return cls(key.public_bytes_raw())

    def verifies(self, text: bytes, signature: str) -> bool:
        """Whether ``signature`` (base64) is one of ``text`` by this key."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(base64.b64decode(signature, validate=True), text)
        except (binascii.Error, ValueError, InvalidSignature):
            return False
        return True

    def pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class SigningKey:
    """A private key. Never logged, and never part of an error."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = PublicKey(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> SigningKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """The key in an unencrypted PEM file. Raises KeyFileError."""
        return _private_key(path, _read(path))

    @property
    def id(self) -> str:
        return self.public_key.id

    def sign(self, text: bytes) -> str:
        """The signature, in base64."""
        return base64.b64encode(self._key.sign(text)).decode()

    def save(self, path: Path) -> Path:
        """Write the key to the new file ``path``, for its owner only, and the public half to
        ``path`` with ``.pub``. Returns the path of the latter. Raises KeyFileError."""
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        public = path.with_name(f"{path.name}.pub")
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _create(path, pem, 0o600)
        _create(public, self.public_key.pem(), 0o644)
        return public


class JournalKeys(NamedTuple):
    """The keys that a process opens a journal with."""

    signing: SigningKey | None = None
    trusted: tuple[PublicKey, ...] = ()
    """Keys that the user trusts, besides that of ``signing``."""

    @property
    def all_trusted(self) -> Sequence[PublicKey]:
        own = () if self.signing is None else (self.signing.public_key,)
        return (*own, *self.trusted)


NO_KEYS = JournalKeys()


def trusted_keys() -> tuple[PublicKey, ...]:
    """The keys that the environment names. Raises KeyFileError."""
    named = os.environ.get(TRUSTED_KEY_ENV, "").split(os.pathsep)
    return tuple(PublicKey.load(Path(name)) for name in named if name)


def expanded(path: str) -> Path:
    """The path with ``~`` and variables such as ``$CREDENTIALS_DIRECTORY`` replaced.

    Raises KeyFileError if a variable is not set.
    """
    found = os.path.expandvars(path)
    if "$" in found:
        raise KeyFileError(f"{path}: a variable in this path is not set in the environment")
    return Path(found).expanduser()


def _private_key(path: Path, content: bytes) -> SigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:
        raise KeyFileError(f"{path}: the key is encrypted; asched reads unencrypted keys") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(
            f"{path}: expected an Ed25519 private key in PEM (asched journal keygen)"
        )
    return SigningKey(key)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_KEY_FILE_LIMIT_BYTES)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot read the key: {error.strerror}") from None


def _create(path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise KeyFileError(f"{path}: cannot write the key: {error.strerror}") from None
