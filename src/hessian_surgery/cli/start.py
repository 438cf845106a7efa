"""Where the program starts and ends: an interrupt during imports ends it in one line."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


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
    there; one that lets go of a tensor at that moment aborts the process.
    """
    from hessian_surgery.ranks import launched

    if launched() is not None and not isinstance(code, str):
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError):
                stream.flush()
        os._exit(code or 0)
    sys.exit(code)
