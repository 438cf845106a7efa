"""`history.jsonl`: a line for each iteration, written as it ends."""

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from hessian_surgery.errors import InputError
from hessian_surgery.files import append_text, write_text
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.stored import blamed_on, parse_json


class HistoryWriter(Observer):
    """Appends each iteration to `history.jsonl`, keeps it, and passes everything on.

    Args:
        folder: the run folder; None writes nothing.
        earlier: iterations of a run that is resumed.
        inner: what everything is passed on to.
    """

    def __init__(self, folder: Path | None, earlier: Sequence[IterationRecord], inner: Observer) -> None:
        self._path = folder / "history.jsonl" if folder else None
        self._inner = inner
        self.records = list(earlier)
        if self._path and earlier:
            write_text(self._path, history_text(earlier))
        for record in earlier:
            inner.iteration(record)

    def remark(self, text: str) -> None:
        """Pass it on."""
        self._inner.remark(text)

    def expect(self, stages: Callable[[], Sequence[Expected]], in_seconds: bool = True) -> None:
        """Pass it on."""
        self._inner.expect(stages, in_seconds)

    def stage(self, name: str, done: float, total: int) -> None:
        """Pass it on."""
        self._inner.stage(name, done, total)

    def iteration(self, record: IterationRecord) -> None:
        """Write the line, then pass it on.

        The first line makes the folder: a run that never starts leaves none.
        """
        self.records.append(record)
        if self._path is not None:
            append_text(self._path, history_text([record]), overwrite=record.iteration == 1)
        self._inner.iteration(record)


def history_text(records: Sequence[IterationRecord]) -> str:
    """Lines of `history.jsonl`."""
    return "".join(json.dumps(record.as_dict()) + "\n" for record in records)


def history_hash(records: Sequence[IterationRecord]) -> str:
    """A hash of the lines of these records, which a state keeps: a damaged line then shows."""
    return sha256(history_text(records).encode()).hexdigest()


def load_history(folder: Path, iterations: int, kind: type[IterationRecord], known: str) -> list[IterationRecord]:
    """The first `iterations` records of `history.jsonl`; `known` is their `history_hash`."""
    what = f"resume: {folder}/history.jsonl"
    with blamed_on(what):
        # Only line ends end a line: names may hold other separators.
        text = (folder / "history.jsonl").read_text(encoding="utf-8")
        lines = [f"{line}\n" for line in text.split("\n")[:-1][:iterations]]
        if len(lines) < iterations:
            raise InputError(f"{what} has {len(lines)} lines, where {iterations} are needed")
        if sha256("".join(lines).encode()).hexdigest() != known:
            raise InputError(f"{what} is damaged; begin again in another folder")
        return [kind.from_dict(parse_json(line, what)) for line in lines]
