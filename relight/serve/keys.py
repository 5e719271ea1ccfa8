"""Who may call: keys of the operator, compared in constant time. Knows no route."""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from pathlib import Path

from relight.base.errors import BadSetting, Unauthorized

Header = Callable[[bytes], bytes | None]


class Keys:
    """The keys themselves are not kept: an object that is printed by mistake tells none."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = [_hash(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def check(self, header: Header) -> None:
        """Raises `Unauthorized` unless `Authorization: Bearer` or `x-api-key` holds a key. All keys
        are compared, and by hashes of one length, so that time tells nothing of them."""
        if not self._hashes:
            return
        given = _given(header)
        if given is None:
            raise Unauthorized(
                "no API key was sent; send one as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        found = _hash(given)
        if not sum(hmac.compare_digest(found, key) for key in self._hashes):
            raise Unauthorized("the API key is not one of this server's; ask its operator for one")


def _given(header: Header) -> bytes | None:
    scheme, _, key = (header(b"authorization") or b"").partition(b" ")
    if scheme.lower() == b"bearer" and key.strip():
        return key.strip()
    return (header(b"x-api-key") or b"").strip() or None


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read_keys(path: str) -> list[str]:
    """One a line; empty lines and comments do not count. Raises `BadSetting` if there is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _bad(path, "is not UTF-8 text") from error
    keys = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not any(keys):
        raise _bad(path, "holds no key")
    return [key for key in keys if key]


def _bad(path: str, what: str) -> BadSetting:
    return BadSetting(
        f"api_key_file {path} {what}; give a file with one key a line", param="api_key_file"
    )
