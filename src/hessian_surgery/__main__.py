"""`python -m hessian_surgery`."""

from hessian_surgery.cli.start import start

start()
