"""Moves reports and leases through torch.distributed's store, in a thread of each rank."""

import itertools
import json
import threading
import time
import weakref

from dfa._governor_share import Coordinator, Member
from dfa._shapes import shown

ROUND_S = 0.1
_entered = weakref.WeakKeyDictionary()  # by group: how many governors it has had, which names their keys


class Share:
    """A rank's part of a group's budget: sets the cap of its card by what it may live by. card: the dfa.Governor, of which
    _facts() are read and _set_cap() is called. Keys are named alike on all ranks, as these make their governors of a group in one order."""

    def __init__(self, group, budget_w, card, life_s, store=None):
        import torch.distributed as dist
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        count = next(_entered.setdefault(group, itertools.count()))
        self._store = dist.PrefixStore(f"dfa_governor/{group.group_name}/{count}", store or _store_of(group))
        self._card = card
        self.member = Member(budget_w, self.ranks, life_s)
        self._coordinator = Coordinator(budget_w, self.ranks, life_s) if self.rank == 0 else None
        self._ended, self._thread, self._cap_w, self._lock = threading.Event(), None, None, threading.Lock()
        self.error = ""

    def lease_w(self):
        return self.member.lives_by(time.monotonic())

    def alone(self):
        if self.member.has_lease(time.monotonic()):
            return ""
        return self.error or "no lease has come from the group's first rank in time"

    def begin(self):
        self._cap_w = None
        self.hold()
        self._thread = threading.Thread(target=self._run, name="dfa.Governor of a group", daemon=True)
        self._thread.start()

    def end(self):
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self):
        """The card keeps its cap whatever becomes of the others: without a lease it is the safe share's."""
        while not self._ended.wait(ROUND_S):
            try:
                self._round()
                self.error = ""
            except Exception as error:  # noqa: BLE001: a store that is gone, in whatever way it says so
                self.error = f"the group's store does not answer: {' '.join(str(error).split())[:160]}"
            self.hold()

    def hold(self):
        """Sets the cap of what may be drawn now, and returns when that was. Also called at each step, as the thread may wait for a store
        that does not answer."""
        with self._lock:
            now = time.monotonic()
            cap_w = self.member.lives_by(now)
            if cap_w != self._cap_w:
                self._card._set_cap(cap_w)
                self._cap_w = cap_w
            return now

    def _round(self):
        report = self.member.report(self.hold(), *self._card._facts())  # a lease that has ended counts as given up once its cap is set
        self._store.set(f"report/{self.rank}", json.dumps(report))
        if self._coordinator is not None:
            self._lead()
        lease = self._read(f"lease/{self.rank}")
        if lease is not None:
            self.member.take(lease, time.monotonic())

    def _lead(self):
        for rank in range(self.ranks):
            report = self._read(f"report/{rank}")
            if report is not None:
                self._coordinator.hear(rank, report, time.monotonic())
        for rank, lease in self._coordinator.leases(time.monotonic()).items():
            self._store.set(f"lease/{rank}", json.dumps(lease))

    def _read(self, key):
        return json.loads(self._store.get(key)) if self._store.check([key]) else None


def _store_of(group):
    """A connection of its own where the store gives one: others wait in theirs."""
    from torch.distributed import distributed_c10d
    store = distributed_c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else store


def share_of(group, policy, lease_s, card):
    """(the Share, the policy that the card begins with)"""
    from dfa._distributed_agree import Places
    from dfa._policy import Policy
    policy = policy if isinstance(policy, Policy) else Policy(policy)
    if policy.goal != "power_cap":
        raise ValueError(f"policy {policy} of a group; accepted: a power_cap, of which its cards draw the sum")
    if isinstance(lease_s, bool) or not isinstance(lease_s, (int, float)) or not lease_s >= 5 * ROUND_S:
        raise ValueError(f"lease_s is {shown(lease_s)}; accepted: seconds from {5 * ROUND_S} on, in which a lease is renewed several times")
    places = Places(group)
    if len(places.groups) > 1:
        raise ValueError("group is a DeviceMesh of two dimensions; accepted: one, or a ProcessGroup")
    share = Share(places.groups[0], policy.value, card, lease_s)
    return share, f"power_cap:{share.member.safe_w:.1f}W"
