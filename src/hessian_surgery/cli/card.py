"""`hessian-surgery card`: a model card."""

from hessian_surgery.cli.output import print_text
from hessian_surgery.cli.run_options import CardOptions
from hessian_surgery.report.card import model_card
from hessian_surgery.report.run import load_run
from hessian_surgery.stored import blamed_on


def card(options: CardOptions) -> None:
    """Print a model card for the patched model, in Hugging Face's format."""
    with blamed_on(f"run: {options.run}"):
        text = model_card(load_run(options.run))
    print_text(text)
