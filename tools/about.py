"""What results on an accelerator say of themselves: device, versions, sources, and how they came.
Knows no result."""

import shlex
import sys
import time
from pathlib import Path
from typing import Any

from tools.sources import sources_hash


def about(device: str) -> dict[str, Any]:
    """Of this process and of the device by torch's name for it."""
    import torch

    module = torch.get_device_module(device)
    name = module.get_device_name() if hasattr(module, "get_device_name") else device
    return {
        "sources": sources_hash(),
        "device": name,
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command(sys.orig_argv[1:]),
    }


def command(arguments: list[str]) -> str:
    """As it was called, but for the places of one machine."""
    return shlex.join(["python", *map(_word, arguments)])


def _word(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return "DIR" if path.is_dir() or not path.suffix else "FILE"
