"""Where the program starts and ends: an interrupt during imports ends it in one line."""

import atexit
import os
import sys
import time
from contextlib import suppress
from typing import NoReturn

# Seconds for which a failed rank stays.
DELIVERY = 1.0


def start() -> None:
    """Run the command line."""
    try:
        from hessian_surgery.cli.main import main

        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave(130)
    except SystemExit as end:
        _leave(end.code)


def _leave(code: int | str | None) -> NoReturn:
    """End the process as `sys.exit` does.

    A rank skips the end of the interpreter. After an error, threads of its process group are still
    there; one that lets go of a tensor at that moment aborts the process. What a failed rank has
    sent must reach the others first: they may fail for the same reason, and say so.
    """
    from hessian_surgery.ranks import launched

    if launched() is not None and not isinstance(code, str):
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError):
                stream.flush()
        if code:
            time.sleep(DELIVERY)
        os._exit(code or 0)
    sys.exit(code)
