"""`python -m hessian_surgery`."""

from hessian_surgery.cli.start import start

if __name__ == "__main__":  # processes that share the work import this file as well
    start()
