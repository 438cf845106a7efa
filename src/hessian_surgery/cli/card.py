"""`hessian-surgery card`: a model card."""

from hessian_surgery.cli.run_options import CardOptions
from hessian_surgery.report.card import model_card
from hessian_surgery.report.run import load_run


def card(options: CardOptions) -> None:
    """Print a model card for the patched model, in Hugging Face's format."""
    print(model_card(load_run(options.run)), end="")
