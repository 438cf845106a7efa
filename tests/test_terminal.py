import io

from rich.table import Table

from hessian_surgery.terminal import SafeConsole, safe

HOSTILE = "a\x1b]0;owned\x07\x9b31m\u202e[bold]b"


def test_a_console_writes_out_what_would_act_on_a_terminal():
    console = SafeConsole(file=io.StringIO(), width=80)
    table = Table("name")
    table.add_row(HOSTILE)
    console.print(table)
    console.print(HOSTILE, markup=False)
    console.print(f"[red]{safe(HOSTILE)}[/]\nnext", highlight=False)
    printed = console.file.getvalue()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(printed)
    assert printed.count("\\x1b]0;owned") == 3
    assert "[bold]b\nnext" in printed


def test_colours_stay():
    console = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print("[red]x[/]")
    assert "\x1b[31mx" in console.file.getvalue()
