import pytest

from hessian_surgery.operation.schedule import Expected, Schedule


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


# A run: for each stage its name, what is expected, what it takes, and in how many units.
STAGES = [("prepare", 10, 10, 2), ("directions", 40, 40, 30), ("plan", 30, 30, 1), ("report", 20, 20, 3)]


def run_through(stages, look, repeats=1):
    """Run stages on a simulated clock; `look(schedule, elapsed)` is called every half second."""
    clock = Clock()
    schedule = Schedule(clock)
    schedule.expect([Expected(name, seconds) for name, seconds, _, _ in stages] * repeats)
    for name, _, takes, units in stages * repeats:
        schedule.stage(name, 0, units)
        ticks = round(2 * takes)
        for tick in range(1, ticks + 1):
            clock.now += 0.5
            done = units * tick // ticks
            if done > units * (tick - 1) // ticks and done < units:
                schedule.stage(name, done, units)
            look(schedule, clock.now - 100.0)
    return clock.now - 100.0


def seen(stages, repeats=1):
    """Pairs (elapsed, left), and the length of the run."""
    rows = []
    length = run_through(stages, lambda schedule, elapsed: rows.append((elapsed, schedule.left)), repeats)
    return rows, length


def test_what_is_as_expected_counts_down_second_by_second():
    rows, length = seen(STAGES)
    for elapsed, left in rows[:-1]:
        assert left == pytest.approx(length - elapsed, abs=0.3 * min(elapsed, length - elapsed) + 1.5)


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("wrong", ["prepare", "directions", "plan", "report", "all"])
def test_after_a_third_the_time_left_is_within_a_factor_of_two(wrong, factor):
    """Whichever is not as expected: a stage that is over, the present one, a later one, or all."""
    stages = [(name, n, n * (factor if wrong in (name, "all") else 1), units) for name, n, _, units in STAGES]
    rows, length = seen(stages)
    for elapsed, left in rows:
        if length / 3 <= elapsed <= 0.4 * length:
            assert 0.5 <= left / (length - elapsed) <= 2, (elapsed, left, length)


def test_a_silent_stage_that_is_overdue_says_that_the_others_will_be_too():
    """A busy machine: the fits take twice as long as in the trial, and so does their like."""
    stages = [("prepare", 1, 1, 2), ("plan", 10, 20, 1), ("front", 10, 20, 1)]
    rows, length = seen(stages)
    for elapsed, left in rows:
        if length / 3 <= elapsed <= 0.4 * length:
            assert 0.5 <= left / (length - elapsed) <= 2


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_stage_that_comes_again_takes_what_it_took(factor):
    stages = [("spikes", 10, 10 * factor, 20), ("sensitivity", 5, 5, 9)]
    rows, length = seen(stages, repeats=6)
    for elapsed, left in rows:
        if elapsed >= length / 3 and length - elapsed > 2:
            assert left == pytest.approx(length - elapsed, rel=0.35, abs=1)


@pytest.mark.parametrize("takes", [3, 30, 300])
def test_something_is_left_while_work_goes_on_and_the_share_never_falls(takes):
    shares = []

    def look(schedule, elapsed):
        assert schedule.left > 0 or elapsed == 10 + takes
        shares.append(schedule.share)

    run_through([("prepare", 10, 10, 2), ("plan", 10, takes, 1)], look)
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_shares_without_seconds_become_seconds_when_something_is_done():
    clock = Clock()
    schedule = Schedule(clock)
    assert schedule.left is None
    schedule.expect([Expected("spikes", 30), Expected("density", 60)], in_seconds=False)
    schedule.stage("spikes", 0, 30)
    assert schedule.left is None
    clock.now += 2
    schedule.stage("spikes", 1, 30)
    assert schedule.left == pytest.approx(2 * 89, rel=0.01)


def test_what_ends_early_or_is_resumed_is_struck():
    clock = Clock()
    schedule = Schedule(clock)
    stages = [Expected("prepare", 1)]
    for fold in (1, 2, 3):
        stages += [Expected("plan", 10, iteration, fold) for iteration in (1, 2)]
        stages += [Expected("report", 1, 0, fold)]
    schedule.expect([*stages, Expected("report", 1)])
    assert schedule.iterations == 2
    assert schedule.left == pytest.approx(65)
    schedule.stage("prepare", 0, 1)
    clock.now += 1
    schedule.stage("prepare", 1, 1)
    schedule.skip(fold=1)  # was done before
    assert schedule.left == pytest.approx(43)
    schedule.skip(iteration=1)  # likewise, of fold 2
    assert schedule.left == pytest.approx(33)
    schedule.stage("report", 0, 1)  # fold 2 ended at once
    assert schedule.left == pytest.approx(1 + 20 + 1 + 1)


def test_a_stage_that_nobody_expected_changes_nothing_else():
    clock = Clock()
    schedule = Schedule(clock)
    schedule.expect([Expected("plan", 10), Expected("report", 10)])
    schedule.stage("download", 0, 4)
    clock.now += 5
    assert schedule.left == pytest.approx(25)
    schedule.stage("download", 1, 4)
    assert schedule.left == pytest.approx(15 + 20)
    schedule.stage("plan", 0, 1)
    assert schedule.left == pytest.approx(20)
