"""Starts the `relight` command. Knows no command.

The commands take most of a second to import, in which none of them hears Ctrl-C yet: it ends the
process here, with no word of where it was.
"""

import os
import signal
import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells tell it


def main() -> None:
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    from relight.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, heard)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
