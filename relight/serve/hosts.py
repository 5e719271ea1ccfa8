"""Under which names the server may be asked, so that no page of a browser talks to it unasked.
Knows no route.

A page can let the name that it came from lead to this machine (DNS rebinding): the browser then
takes our answers for that page's own. Which name was asked stands in the header `host`. Addresses
cannot be rebound, and nobody can register a name in `localhost` or `internal`, which is where
containers find the machine that they run on.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable

from relight.base.errors import BadSetting, WrongHost
from relight.base.settings import Settings

Header = Callable[[bytes], bytes | None]

ANY = "*"
OWN = ("localhost", "internal")
_NAME = re.compile(r"[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*\.?")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")
MAX_SHOWN = 100


class Hosts:
    """`names` beside addresses and those of this machine; None: any."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._names = None if names is None else frozenset(map(_plain, names))

    def check(self, header: Header) -> None:
        """Raises `WrongHost`. A request without the header comes from no browser."""
        if self._names is None:
            return
        asked = (header(b"host") or b"").decode("latin-1").strip()
        found = _HOST.fullmatch(asked)
        name = _plain(found[1]) if found else asked
        if asked and name not in self._names and not _is_safe(name):
            shown, short = asked[:MAX_SHOWN], name[:MAX_SHOWN]
            flag = f"--allowed-host {short}" if _NAME.fullmatch(short) else "--allowed-host"
            raise WrongHost(
                f"header host is {shown!r}, which is not among the names of this server; if it is "
                f"one, start the server with {flag}",
                param="host",
            )


def hosts_of(settings: Settings, *, keyed: bool) -> Hosts:
    """The names that the operator allows. Without any, a server that only this machine reaches asks
    for its own: pages must not reach it either. A key, or a certificate, keeps them out as well.
    Raises `BadSetting` for what no header can hold as a name."""
    names = settings.allowed_host
    for name in names:
        if name != ANY and not _NAME.fullmatch(name) and _address(name.strip("[]")) is None:
            raise BadSetting(
                f"allowed_host is {name!r}; wanted a name without scheme, port and wildcard, such "
                f"as llm.example, or {ANY} for any",
                param="allowed_host",
            )
    if ANY in names:
        return Hosts()
    is_private = _is_loopback(settings.host) and not keyed and not settings.tls_cert
    return Hosts(names) if names or is_private else Hosts()


def _plain(name: str) -> str:
    return name.strip().strip("[]").removesuffix(".").lower()


def _is_safe(name: str) -> bool:
    return name.rpartition(".")[2] in OWN or _address(name) is not None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
