"""The state machine of a group by example: a sentence for every kind of behaviour it promises."""

import pytest

from pannier.errors import Failure
from pannier.fleet import messages as m
from pannier.fleet.backoff import MAX_TRIES
from pannier.fleet.state import REPLACED, UNLOADED, GroupState, initial, step

BROKEN = Failure(code="engine-exited", message="it ended")
HOST_BROKEN = Failure(code="host-failed", message="llama-swap did not start")


class Group:
    """A group that is told events; it keeps the effects of the last call."""

    def __init__(self, *members: str, swap: bool = False) -> None:
        self.state: GroupState = initial(members or ("a", "b"), swap=swap)

    def tell(self, *events: m.Event) -> list[m.Effect]:
        told: list[m.Effect] = []
        for event in events:
            self.state, effects = step(self.state, event)
            told += effects
        return told

    def up(self) -> "Group":
        self.tell(m.Begin(), m.HostUp())
        return self

    def serving(self, name: str, requests: int = 1) -> "Group":
        self.tell(*[m.Asked(name)] * requests, m.Ready(name))
        return self

    def phase(self, name: str) -> str:
        return self.state.members[name].phase

    def inflight(self, name: str) -> int:
        return self.state.members[name].inflight


# --- loading --------------------------------------------------------------------------------------


def test_a_group_starts_its_host_once():
    group = Group()
    assert group.tell(m.Begin()) == [m.StartHost()]
    assert group.tell(m.Begin()) == []
    assert group.state.phase == "starting"


def test_a_request_loads_a_cold_member_and_is_granted_when_it_is_ready():
    group = Group().up()
    assert group.tell(m.Asked("a")) == [m.Load("a")]
    assert group.phase("a") == "loading"
    assert group.tell(m.Ready("a")) == [m.Grant("a")]
    assert (group.phase("a"), group.inflight("a")) == ("ready", 1)


def test_a_hundred_requests_make_one_load():
    group = Group().up()
    assert group.tell(*[m.Asked("a")] * 100) == [m.Load("a")]
    assert group.tell(m.Ready("a")) == [m.Grant("a")]
    assert group.inflight("a") == 100


def test_a_request_for_a_ready_member_is_granted_at_once():
    group = Group().up().serving("a")
    assert group.tell(m.Asked("a")) == [m.Grant("a")]
    assert group.inflight("a") == 2


def test_a_request_that_comes_before_the_host_is_up_waits_for_it():
    group = Group()
    assert group.tell(m.Begin(), m.Asked("a")) == [m.StartHost()]
    assert group.phase("a") == "queued"
    assert group.tell(m.HostUp()) == [m.WatchHost(), m.Load("a")]


def test_members_that_do_not_share_their_room_load_side_by_side():
    group = Group().up()
    assert group.tell(m.Asked("a"), m.Asked("b")) == [m.Load("a"), m.Load("b")]


def test_a_wish_loads_and_holds_nothing():
    group = Group().up()
    assert group.tell(m.Asked("a", holds=False)) == [m.Load("a")]
    assert group.tell(m.Ready("a")) == [m.WatchIdle("a")]
    assert (group.phase("a"), group.inflight("a")) == ("ready", 0)
    assert group.tell(m.Asked("a", holds=False)) == []


def test_a_client_that_leaves_does_not_stop_the_load_of_others():
    group = Group().up()
    group.tell(m.Asked("a"), m.Asked("a"))
    assert group.tell(m.Left("a")) == []
    assert group.tell(m.Ready("a")) == [m.Grant("a")]
    assert group.inflight("a") == 1


def test_a_load_goes_on_when_everybody_left():
    group = Group().up()
    assert group.tell(m.Asked("a"), m.Left("a")) == [m.Load("a")]
    assert group.tell(m.Ready("a")) == [m.WatchIdle("a")]


def test_a_failed_load_refuses_all_who_wait_and_says_why():
    group = Group().up()
    group.tell(m.Asked("a"), m.Asked("a"))
    assert group.tell(m.Ended("a", BROKEN)) == [m.Refuse("a", BROKEN)]
    member = group.state.members["a"]
    assert (member.phase, member.asked, member.failure) == ("failed", 0, BROKEN)


def test_after_a_failed_load_the_next_request_starts_a_fresh_one():
    group = Group().up()
    group.tell(m.Asked("a"), m.Ended("a", BROKEN))
    assert group.tell(m.Asked("a")) == [m.Load("a")]
    assert group.state.members["a"].failure is None


# --- unloading ------------------------------------------------------------------------------------


def test_the_idle_time_begins_when_the_last_request_is_done():
    group = Group().up().serving("a", 2)
    assert group.tell(m.Done("a")) == []
    assert group.tell(m.Done("a")) == [m.WatchIdle("a")]


def test_an_idle_member_leaves_and_a_busy_one_does_not():
    group = Group().up().serving("a")
    assert group.tell(m.IdleOver("a")) == []
    assert group.tell(m.Done("a"), m.IdleOver("a")) == [m.WatchIdle("a"), m.Unload("a")]
    assert group.tell(m.Ended("a")) == []
    assert group.phase("a") == "cold"


def test_an_unload_waits_for_what_is_being_answered():
    group = Group().up().serving("a")
    assert group.tell(m.UnloadAsked("a")) == [m.WatchDrain("a")]
    assert group.phase("a") == "draining"
    assert group.tell(m.Done("a")) == [m.Unload("a")]


def test_a_drain_that_takes_too_long_is_cut():
    group = Group().up().serving("a")
    group.tell(m.UnloadAsked("a"))
    assert group.tell(m.DrainOver("a")) == [m.Unload("a")]
    assert group.tell(m.Ended("a"), m.Done("a")) == []
    assert (group.phase("a"), group.inflight("a")) == ("cold", 0)


def test_a_request_for_a_member_that_leaves_loads_it_again_when_it_is_gone():
    group = Group().up().serving("a")
    group.tell(m.UnloadAsked("a"))
    assert group.tell(m.Asked("a")) == []
    assert group.tell(m.Done("a")) == [m.Unload("a")]
    assert group.tell(m.Ended("a")) == [m.Load("a")]
    assert group.tell(m.Ready("a")) == [m.Grant("a")]


def test_an_unload_while_it_loads_refuses_who_waits():
    group = Group().up()
    group.tell(m.Asked("a"))
    assert group.tell(m.UnloadAsked("a")) == [m.Refuse("a", UNLOADED), m.Unload("a")]
    assert group.tell(m.Ready("a")) == [], "it became ready in the moment it was stopped"
    assert group.tell(m.Ended("a")) == []
    assert group.phase("a") == "cold"


def test_an_unload_of_a_queued_member_takes_it_out_of_the_queue():
    group = Group(swap=True).up().serving("a")
    group.tell(m.Asked("b"))
    assert group.tell(m.UnloadAsked("b")) == [m.Refuse("b", UNLOADED)]
    assert (group.phase("b"), group.state.queue) == ("cold", ())


def test_an_unload_of_a_failed_member_forgets_its_failure():
    group = Group().up()
    group.tell(m.Asked("a"), m.Ended("a", BROKEN), m.UnloadAsked("a"))
    assert (group.phase("a"), group.state.members["a"].failure) == ("cold", None)


def test_late_news_of_an_end_does_not_hide_why_a_member_failed():
    group = Group().up()
    group.tell(m.Asked("a"), m.Ended("a", BROKEN), m.Ended("a"))
    assert (group.phase("a"), group.state.members["a"].failure) == ("failed", BROKEN)


# --- a swap set -----------------------------------------------------------------------------------


def test_in_a_swap_set_an_idle_resident_makes_room_at_once():
    group = Group(swap=True).up().serving("a")
    group.tell(m.Done("a"))
    assert group.tell(m.Asked("b")) == [m.Unload("a")]
    assert group.tell(m.Ended("a")) == [m.Load("b")]


def test_in_a_swap_set_a_busy_resident_finishes_first():
    group = Group(swap=True).up().serving("a")
    assert group.tell(m.Asked("b")) == [m.WatchDrain("a")]
    assert group.tell(m.Done("a")) == [m.Unload("a")]
    assert group.tell(m.Ended("a")) == [m.Load("b")]


def test_in_a_swap_set_a_stream_of_requests_cannot_keep_another_member_out():
    group = Group(swap=True).up().serving("a")
    group.tell(m.Asked("b"))
    assert group.tell(m.Asked("a")) == [], "it stands behind b"
    assert group.tell(m.Done("a"), m.Ended("a")) == [m.Unload("a"), m.Load("b")]
    assert group.tell(m.Ready("b")) == [m.Grant("b"), m.WatchDrain("b")]
    assert group.tell(m.Done("b"), m.Ended("b")) == [m.Unload("b"), m.Load("a")]


def test_in_a_swap_set_who_asks_first_is_served_first():
    group = Group("a", "b", "c", swap=True).up()
    loads = group.tell(m.Asked("b"), m.Asked("c"), m.Asked("a"), m.Asked("b"))
    for name in ("b", "c", "a"):
        loads += group.tell(m.Ready(name), m.Done(name), m.Ended(name))
    assert [effect.member for effect in loads if isinstance(effect, m.Load)] == ["b", "c", "a"]


def test_in_a_swap_set_who_waits_for_nobody_any_more_pushes_no_one_out():
    group = Group(swap=True).up().serving("a")
    group.tell(m.Asked("b"), m.Left("b"))
    assert group.phase("b") == "cold"
    assert group.tell(m.Done("a")) == [m.Unload("a")]  # it had been told to finish already
    assert group.tell(m.Ended("a")) == []
    assert group.tell(m.Asked("a")) == [m.Load("a")]


def test_in_a_swap_set_a_wish_stays_when_who_waited_beside_it_left():
    group = Group(swap=True).up().serving("a")
    group.tell(m.Asked("b", holds=False), m.Asked("b"), m.Left("b"))
    assert group.phase("b") == "queued"
    group.tell(m.Done("a"))
    assert group.tell(m.Ended("a")) == [m.Load("b")]


def test_in_a_swap_set_a_failed_load_lets_the_next_one_in():
    group = Group(swap=True).up()
    group.tell(m.Asked("a"), m.Asked("b"))
    assert group.tell(m.Ended("a", BROKEN)) == [m.Refuse("a", BROKEN), m.Load("b")]


def test_in_a_swap_set_a_crash_of_the_resident_is_room_enough():
    group = Group(swap=True).up().serving("a")
    group.tell(m.Asked("b"))
    assert group.tell(m.Ended("a", BROKEN)) == [m.LoadAgain("a", 1), m.Load("b")]


# --- crashes --------------------------------------------------------------------------------------


def test_a_member_that_crashes_is_loaded_again_with_rising_waits_and_then_given_up():
    group = Group().up()
    tries = []
    for _ in range(MAX_TRIES):
        group.tell(m.Asked("a"), m.Ready("a"), m.Done("a"))
        tries += group.tell(m.Ended("a", BROKEN))
    assert tries == [m.LoadAgain("a", attempt) for attempt in range(1, MAX_TRIES)]
    assert group.phase("a") == "failed"
    assert group.tell(m.Asked("a")) == [m.Load("a")], "a person may still ask"


def test_a_member_that_was_ready_for_long_has_its_crashes_forgotten():
    group = Group().up().serving("a")
    group.tell(m.Ended("a", BROKEN), m.Asked("a"), m.Ready("a"), m.Steady("a"))
    assert group.tell(m.Ended("a", BROKEN)) == [m.LoadAgain("a", 1)]


def test_the_wait_after_a_crash_ends_in_a_load():
    group = Group().up().serving("a")
    group.tell(m.Ended("a", BROKEN))
    assert group.tell(m.AgainDue("a")) == [m.Load("a")]


def test_the_wait_after_a_crash_means_nothing_once_the_member_was_unloaded():
    group = Group().up().serving("a")
    group.tell(m.Ended("a", BROKEN), m.UnloadAsked("a"))
    assert group.tell(m.AgainDue("a")) == []
    assert group.phase("a") == "cold"


def test_requests_of_a_crashed_member_still_count_until_they_are_done():
    group = Group().up().serving("a", 2)
    group.tell(m.Ended("a", BROKEN))
    assert group.inflight("a") == 2
    group.tell(m.Done("a"), m.Done("a"))
    assert group.inflight("a") == 0


def test_a_crash_of_one_member_touches_no_other():
    group = Group().up().serving("a").serving("b")
    group.tell(m.Ended("a", BROKEN))
    assert (group.phase("b"), group.inflight("b")) == ("ready", 1)


# --- the host -------------------------------------------------------------------------------------


def test_a_host_that_does_not_start_refuses_who_waits_and_is_tried_again():
    group = Group()
    group.tell(m.Begin(), m.Asked("a"))
    told = group.tell(m.HostDown(HOST_BROKEN))
    assert told == [m.Refuse("a", HOST_BROKEN), m.RetryHost(1), m.LoadAgain("a", 1)]
    assert group.state.phase == "backoff"
    assert group.tell(m.RetryDue()) == [m.StartHost()]


def test_a_request_during_the_wait_for_the_host_is_served_by_the_next_one():
    group = Group()
    group.tell(m.Begin(), m.HostDown(HOST_BROKEN))
    assert group.tell(m.Asked("a")) == []
    assert group.tell(m.RetryDue(), m.HostUp()) == [m.StartHost(), m.WatchHost(), m.Load("a")]


def test_a_host_that_never_starts_is_given_up_and_a_request_starts_it_anew():
    group = Group()
    retries = group.tell(m.Begin())
    for _ in range(MAX_TRIES):
        retries += group.tell(m.HostDown(HOST_BROKEN), m.RetryDue())
    assert [each.attempt for each in retries if isinstance(each, m.RetryHost)] == [1, 2, 3, 4, 5]
    assert group.state.phase == "failed"
    assert group.state.failure == HOST_BROKEN
    assert group.tell(m.Asked("a")) == [m.StartHost()]
    assert group.tell(m.HostUp()) == [m.WatchHost(), m.Load("a")]


def test_a_host_that_comes_up_and_dies_again_is_given_up_too():
    group = Group()
    group.tell(m.Begin())
    waits = []
    for _ in range(MAX_TRIES):
        waits += group.tell(m.HostUp(), m.HostDown(HOST_BROKEN), m.RetryDue())
    assert [each.attempt for each in waits if isinstance(each, m.RetryHost)] == [1, 2, 3, 4, 5]
    assert group.state.phase == "failed"


def test_a_host_that_ran_for_long_has_its_earlier_ends_forgotten():
    group = Group()
    group.tell(m.Begin(), m.HostUp(), m.HostDown(HOST_BROKEN), m.RetryDue(), m.HostUp())
    assert group.tell(m.HostSteady(), m.HostDown(HOST_BROKEN))[0] == m.RetryHost(1)


def test_no_wait_that_is_over_wakes_a_host_that_was_given_up():
    group = Group()
    group.tell(m.Begin(), m.Asked("a", holds=False))
    for _ in range(MAX_TRIES):
        group.tell(m.HostDown(HOST_BROKEN), m.AgainDue("a"), m.RetryDue())
    assert group.state.phase == "failed"
    assert group.tell(m.AgainDue("a"), m.RetryDue()) == []


def test_the_members_of_a_host_that_died_come_back_with_it():
    group = Group().up().serving("a")
    assert group.tell(m.HostDown(HOST_BROKEN)) == [m.RetryHost(1), m.LoadAgain("a", 1)]
    assert group.phase("a") == "failed"
    group.tell(m.RetryDue())
    assert group.tell(m.HostDown(HOST_BROKEN)) == [m.RetryHost(2), m.LoadAgain("a", 2)]
    assert group.tell(m.AgainDue("a")) == []
    assert group.tell(m.RetryDue(), m.HostUp()) == [m.StartHost(), m.WatchHost(), m.Load("a")]


# --- the end --------------------------------------------------------------------------------------


def test_an_idle_group_stops_at_once():
    group = Group().up()
    assert group.tell(m.StopAsked()) == [m.StopHost()]
    assert group.tell(m.Stopped()) == []
    assert group.state.phase == "absent"


def test_a_group_that_ends_refuses_who_waits_and_finishes_what_is_being_answered():
    group = Group().up().serving("a")
    group.tell(m.Asked("b"))
    assert group.tell(m.StopAsked()) == [m.Refuse("b", REPLACED), m.WatchGroupDrain()]
    assert group.tell(m.Asked("a")) == [m.Refuse("a", REPLACED)]
    assert group.tell(m.Done("a")) == [m.StopHost()]


def test_a_group_drain_that_takes_too_long_is_cut():
    group = Group().up().serving("a")
    group.tell(m.StopAsked())
    assert group.tell(m.GroupDrainOver()) == [m.StopHost()]
    assert group.tell(m.GroupDrainOver(), m.StopAsked(), m.Done("a")) == []


@pytest.mark.parametrize("before", [[], [m.HostDown(HOST_BROKEN)], [m.HostUp()]])
def test_a_group_can_be_stopped_in_any_phase(before):
    group = Group()
    group.tell(m.Begin(), *before)
    assert group.tell(m.StopAsked()) == [m.StopHost()]
    assert group.tell(m.HostUp(), m.HostDown(HOST_BROKEN), m.RetryDue(), m.Begin()) == []


def test_only_a_group_that_was_asked_to_end_can_be_gone():
    group = Group().up().serving("a")
    assert group.tell(m.Stopped()) == []
    assert (group.state.phase, group.inflight("a")) == ("ready", 1)


def test_a_host_that_is_down_cannot_go_down_again():
    group = Group()
    group.tell(m.Begin(), m.HostDown(HOST_BROKEN))
    assert group.tell(m.HostDown(HOST_BROKEN)) == []
    assert group.state.attempts == 1
