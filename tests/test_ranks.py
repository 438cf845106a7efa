"""Ranks: who does what, without any exchange."""

from hypothesis import given
from hypothesis import strategies as st

from hessian_surgery.ranks import Ranks, acting, alone, launched, present

SIZES = st.integers(1, 9)


@given(SIZES, st.integers(0, 40))
def test_parts_are_all_items_in_order_and_nearly_equal(size, count):
    parts = [Ranks(rank, size).part(count) for rank in range(size)]
    assert [item for part in parts for item in part] == list(range(count))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


@given(SIZES, st.lists(st.integers(0, 12), max_size=6))
def test_turns_deal_items_of_several_lists_out_in_one_round(size, lists):
    owners = []
    for rank in range(size):
        turn = Ranks(rank, size)
        mine = []
        done = 0
        for length in lists:
            mine += [done + item for item in range(turn.rank, length, turn.size)]
            turn = turn.turn(length)
            done += length
        owners.append(mine)
    assert owners == [list(range(rank, sum(lists), size)) for rank in range(size)]


def test_torchrun_tells_who_this_is():
    told = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert launched(told) == Ranks(3, 4, 1, 2, writes=False)
    assert launched({**told, "RANK": "0", "LOCAL_RANK": "0"}) == Ranks(0, 4, 0, 2)
    assert launched({}) is None


def test_alone_works_on_everything_and_still_writes_nothing():
    with acting(Ranks(2, 4, joined=True, writes=False)):
        with alone():
            assert present() == Ranks(0, 1, writes=False)
        assert present().size == 4
    assert present() == Ranks()
