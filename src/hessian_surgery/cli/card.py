"""`hessian-surgery card`: a model card."""

from dataclasses import dataclass

from hessian_surgery.cli.options import RunFolder
from hessian_surgery.report.card import model_card
from hessian_surgery.report.run import load_run


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    """The options of `card`."""

    run: RunFolder


def card(options: CardOptions) -> None:
    """Print a model card for the patched model, in Hugging Face's format."""
    print(model_card(load_run(options.run)), end="")
