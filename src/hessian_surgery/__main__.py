"""`python -m hessian_surgery`."""

from hessian_surgery.cli.main import main

main()
