"""One budget over the cards of a job: who may draw how much, until when. Plain numbers; dfa._governor_group moves them.

A lease is watts for a time. A member lives by the largest it may: its lease while that lasts, else no more than the safe share. Its
report says what it lives by and which lease it has taken up; until it says so, the coordinator counts the largest of all leases that
it has sent since. So the sum of what members live by is within the budget whichever messages are lost and whoever dies: decreases
go out at once, increases only out of what reports say has been given up.

Clocks of machines are not compared: a lease names the report that it answers, and lasts from when that was made.
"""

import math

from dfa import _core


class Member:
    """One rank's card."""

    def __init__(self, budget_w, ranks, life_s):
        self.safe_w = _core.safe_power(budget_w, ranks)
        self._life_s = life_s
        self._lease_w, self._until_s, self._taken = self.safe_w, -math.inf, 0
        self._made_s = {}  # when the last reports were made, by their numbers
        self._number = 0

    def lives_by(self, now_s):
        return self._lease_w if now_s <= self._until_s else min(self._lease_w, self.safe_w)

    def has_lease(self, now_s):
        return now_s <= self._until_s

    def report(self, now_s, power_w, step_s, least_w, most_w):
        """What goes to the coordinator."""
        self._number += 1
        self._made_s = {number: made for number, made in self._made_s.items() if made > now_s - self._life_s}
        self._made_s[self._number] = now_s
        return {"number": self._number, "taken": self._taken, "lives_by_w": self.lives_by(now_s), "power_w": power_w, "step_s": step_s,
                "least_w": least_w, "most_w": most_w}

    def take(self, lease, now_s):
        """A lease {"number", "answers", "power_w"}: of the coordinator's latest, or one that is known already."""
        made_s = self._made_s.get(lease["answers"])
        if lease["number"] <= self._taken or made_s is None or now_s > made_s + self._life_s:
            return
        self._taken = lease["number"]
        self._lease_w, self._until_s = lease["power_w"], made_s + self._life_s


class Coordinator:
    """Shares the budget out. One rank has it."""

    def __init__(self, budget_w, ranks, life_s):
        self._budget_w, self._life_s = budget_w, life_s
        self._safe_w = _core.safe_power(budget_w, ranks)
        self._reports, self._heard_s = [None] * ranks, [-math.inf] * ranks
        self._lived_w = [self._safe_w] * ranks  # by its last report, and by leases that have ended since
        self._sent = [[] for _ in range(ranks)]  # (number, watts, until) of leases that no report has taken up
        self._numbers = [0] * ranks

    def hear(self, rank, report, now_s):
        known = self._reports[rank]
        if known is not None and report["number"] <= known["number"]:
            return
        self._reports[rank], self._heard_s[rank] = report, now_s
        self._lived_w[rank] = report["lives_by_w"]
        self._sent[rank] = [one for one in self._sent[rank] if one[0] > report["taken"]]

    def alive(self, rank, now_s):
        return now_s <= self._heard_s[rank] + self._life_s

    def promised_w(self, now_s):
        """The most that each member may live by: of one that is silent for a lease's life, no more than the safe share. What a lease
        leaves behind at its end, the smaller of it and of the safe share, it may live by until a report says otherwise."""
        result = []
        for rank, sent in enumerate(self._sent):
            ended = [min(watts, self._safe_w) for _, watts, until_s in sent if until_s < now_s]
            self._lived_w[rank] = max([self._lived_w[rank], *ended])
            self._sent[rank] = sent = [one for one in sent if one[2] >= now_s]
            lived = self._lived_w[rank] if self.alive(rank, now_s) else min(self._lived_w[rank], self._safe_w)
            result.append(max([lived, *(watts for _, watts, _ in sent)]))
        return result

    def leases(self, now_s):
        """{rank: lease} of those that are alive."""
        promised = self.promised_w(now_s)
        alive = [rank for rank in range(len(promised)) if self.alive(rank, now_s)]
        if not alive:
            return {}
        budget_w = self._budget_w - sum(watts for rank, watts in enumerate(promised) if rank not in alive)
        reports = [self._reports[rank] for rank in alive]
        watts = _core.leases(max(budget_w, 0.0), [_of_card(one) for one in reports], [promised[rank] for rank in alive])
        result = {}
        for rank, report, power_w in zip(alive, reports, watts):
            self._numbers[rank] += 1
            self._sent[rank].append((self._numbers[rank], power_w, now_s + self._life_s))
            result[rank] = {"number": self._numbers[rank], "answers": report["number"], "power_w": power_w}
        return result


def _of_card(report):
    return tuple(float(report[name]) for name in ("lives_by_w", "power_w", "step_s", "least_w", "most_w"))
