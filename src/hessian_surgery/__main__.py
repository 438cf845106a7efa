"""`python -m hessian_surgery`."""

from hessian_surgery.cli import main

main()
