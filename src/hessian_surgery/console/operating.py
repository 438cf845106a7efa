"""Operations, diagnoses and costs as commands run and show them."""

from pathlib import Path

from rich.console import Console

from hessian_surgery.console.inputs import Opened
from hessian_surgery.console.output import notes, print_json, print_notes
from hessian_surgery.console.progress import TerminalObserver
from hessian_surgery.console.tables import describe_choices, print_cost, print_diagnosis, print_findings
from hessian_surgery.surgery.config import SurgeryConfig
from hessian_surgery.surgery.cost import estimate_cost
from hessian_surgery.surgery.diagnosis import diagnose
from hessian_surgery.surgery.operate import operate
from hessian_surgery.surgery.outcome import Outcome


def operate_on(opened: Opened, config: SurgeryConfig, folder: Path, resume: bool) -> Outcome:
    """Operate with a bar and a line per iteration, and write the run folder."""
    checkpoint, parts = opened.checkpoint, opened.parts
    sizes = f"deciding on {len(parts.sensitivity)} sensitivity images, reporting on {len(parts.heldout)} held-out ones"
    try:
        with TerminalObserver(notes(), config.rounds, (*opened.remarks, sizes)) as terminal:
            outcome = operate(
                opened.model,
                hessian_data=parts.hessian,
                sensitivity_data=parts.sensitivity,
                heldout_data=parts.heldout,
                config=config,
                stored_as=checkpoint.dtypes if checkpoint else None,
                folder=folder,
                resume=resume,
                observer=terminal,
            )
    except KeyboardInterrupt:
        notes().print(
            "interrupted; the same command with --resume goes on from the last finished iteration", soft_wrap=True
        )
        raise
    outcome.save(folder, checkpoint, opened.given)
    return outcome


def show_outcome(outcome: Outcome, folder: Path, as_json: bool) -> None:
    """What an operation came to, and where it is written."""
    if as_json:
        print_json(outcome.as_dict())
    else:
        print_findings(Console(), outcome.findings)
        notes().print(describe_choices(outcome.choices), highlight=False)
    notes().print(f"run folder: {folder}", highlight=False)


def show_diagnosis(opened: Opened, config: SurgeryConfig, epsilon: float | None, as_json: bool) -> None:
    """Diagnose with a bar, and say what was found."""
    with TerminalObserver(notes(), 1, opened.remarks) as observer:
        found = diagnose(
            opened.model,
            hessian_data=opened.parts.hessian,
            sensitivity_data=opened.parts.sensitivity,
            config=config,
            epsilon=epsilon,
            observer=observer,
        )
    if as_json:
        print_json(found.as_dict())
    else:
        print_diagnosis(Console(), found)


def show_cost(opened: Opened, config: SurgeryConfig, as_json: bool) -> None:
    """What an operation would cost."""
    cost = estimate_cost(opened.classifier, opened.parts.hessian, opened.parts.sensitivity, config)
    if as_json:
        print_json(cost.as_dict())
    else:
        print_cost(Console(), cost)
        print_notes(opened.remarks)
