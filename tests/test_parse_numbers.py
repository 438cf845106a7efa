"""Amounts: alike everywhere, and refused if they can be read in two ways."""

import pytest

import hessian_surgery as hs
from hessian_surgery.cli.compare import choose_protocol
from hessian_surgery.cli.compare_options import CompareOptions
from hessian_surgery.cli.configs import choose_config
from hessian_surgery.cli.operate_options import OperateOptions
from hessian_surgery.parse_numbers import parse_accuracy, parse_amount, parse_amounts


@pytest.mark.parametrize("text", ["0.007", "0.7%", "0.7pp", " 0.7 pp", "7e-3"])
def test_units_of_an_amount(text):
    assert parse_amount("budget", text) == 0.007


def test_large_and_negative_amounts():
    assert parse_amounts("budgets", "-0.3pp,-0.001, 0,50pp,0.099") == (-0.003, -0.001, 0, 0.5, 0.099)
    assert parse_amount("max_drop", "100%") == 1


@pytest.mark.parametrize("text", ["0.8", "80%", "80pp", "80 %"])
def test_units_of_an_accuracy(text):
    assert parse_accuracy("target", text) == 0.8


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_amount, "0.5", "x: got 0.5; that is 50 pp; write 50pp if you mean it, or 0.5pp"),
        (parse_amount, "-0.3", "x: got -0.3; that is -30 pp; write -30pp if you mean it, or -0.3pp"),
        (parse_amount, "1", "x: got 1; that is 100 pp; write 100pp if you mean it, or 1pp"),
        (parse_amount, "20", "x: got 20; write 20pp for so many percentage points"),
        (parse_amount, "1%pp", "x: got '1%', which is not a number; give one such as 0.5"),
        (parse_amount, "pp", "x: got '', which is not a number; give one such as 0.5"),
        (parse_amounts, "0,0.2", "x: got 0.2; that is 20 pp; write 20pp if you mean it, or 0.2pp"),
        (parse_accuracy, "80", "x: got 80; write 80% or 0.8"),
    ],
)
def test_what_is_refused(parse, text, message):
    with pytest.raises(hs.InputError) as refused:
        parse("x", text)
    assert str(refused.value) == message


def test_options_become_fractions():
    options = OperateOptions(model="smallnet", budget="0.5pp", max_drop="2%", target="a=80%,b=0.75")
    config = choose_config(options)
    assert (config.budget, config.max_drop, config.targets) == (0.005, 0.02, {"a": 0.8, "b": 0.75})
    assert choose_config(OperateOptions(model="smallnet", max_drop="2pp", preset="loop")).max_drop == 0.02
    assert choose_protocol(CompareOptions(budgets="-0.1pp,0,1pp")).budgets == (-0.001, 0, 0.01)
