"""Where the program starts: an interrupt while libraries are imported ends it in one line."""

import sys


def start() -> None:
    """Run the command line."""
    try:
        from hessian_surgery.cli.main import main

        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
