"""Checks the files of a certificate before anything is started. Knows no server."""

import ssl
from typing import NoReturn

from relight.base.errors import BadSetting


def check_certificate(cert: str, key: str) -> None:
    """Raises `BadSetting` that names the file at fault. `key` empty: it is in `cert`."""
    if not cert:
        if key:
            _refuse("tls_key", key, "is of no use without tls_cert", "give --tls-cert, too")
        return
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        if path:
            _check_readable(name, path)
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            cert, key or None, password=_no_password
        )
    except _Encrypted:
        _refuse("tls_key", key or cert, "is encrypted", "decrypt it first")
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "KEY_VALUES_MISMATCH" in reason:
            _refuse("tls_key", key or cert, f"is not the key of {cert}", "give the one that is")
        where = "tls_cert, with its key," if not key else "tls_cert or tls_key"
        _refuse(
            "tls_cert", cert, f"cannot be used: {where} is not PEM ({reason})", "see both files"
        )


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    """Without it a terminal would be asked."""
    raise _Encrypted


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        _refuse(name, path, f"cannot be read: {error.strerror}", "give another path")


def _refuse(name: str, path: str, what: str, remedy: str) -> NoReturn:
    raise BadSetting(f"{name} {path} {what}; {remedy}", param=name)
