"""What all ranks of a call have to have in common, asked before anything else is sent: what one rank cannot take, all refuse."""

import json
import weakref
import zlib

import torch
import torch.distributed as dist

from dfa._distributed_exchange import Exchange, cpu_works

_ROOM = 2048  # bytes that each rank may say
_LONGEST_ERROR = 300  # letters, each of which JSON may write with six
_agreed = weakref.WeakKeyDictionary()  # by group: {what a rank said: what all said}


class Places:
    """Where this rank stands: a group, or a mesh of ring × heads."""

    def __init__(self, group):
        self.groups = _groups_of(group)
        self.ways = tuple(map(dist.get_world_size, self.groups))
        self.ranks, self.rank = 1, 0
        for one in self.groups:
            self.rank = self.rank * dist.get_world_size(one) + dist.get_rank(one)
            self.ranks *= dist.get_world_size(one)

    def text(self):
        """The same on all ranks of a call: its ranks, of many their number and a checksum; the sizes of a mesh."""
        if len(self.ways) > 1:
            return str(list(self.ways))
        members = str(dist.get_process_group_ranks(self.groups[0]))
        return members if len(members) <= 200 else f"{self.ranks} ranks of checksum {zlib.crc32(members.encode())}"


def _groups_of(group):
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("torch.distributed has no process group; accepted: after torch.distributed.init_process_group()")
    if group is None:
        return [dist.group.WORLD]
    if isinstance(group, dist.DeviceMesh):
        if group.ndim > 2:
            raise ValueError(f"group is a DeviceMesh of {group.ndim} dimensions; accepted: one, or two (ring, heads)")
        groups = [group.get_group(dim) for dim in range(group.ndim)]
    elif isinstance(group, dist.ProcessGroup):
        groups = [group]
    else:
        raise TypeError(f"group is {type(group).__qualname__}; accepted: a ProcessGroup of which this rank is a member, a DeviceMesh, "
                        "or None for all ranks")
    if any(dist.get_rank(one) < 0 for one in groups):
        raise ValueError(f"group has no rank {dist.get_rank()}; accepted: a group of which this rank is a member")
    return groups


def agree(name, places, device, said, error, check, timeout_s):
    """What each rank said, {field: text} of each, in their order. Raises ValueError on every rank if there is an error on one, or
    if fields differ whose names do not begin with "local".

    check: always, or once, where what this rank has said before is known. All ranks have to come to the same decision, so that
    once is for what says as much of all ranks as of this one."""
    mine = json.dumps({"error": error[:_LONGEST_ERROR]} if error else said)
    known = _agreed.setdefault(places.groups[0], {}) if check == "once" else {}
    if mine in known:
        return known[mine]
    texts = [mine]
    for group in reversed(places.groups):
        texts = _gathered(texts, group, device, timeout_s)
    all_said = [json.loads(text) for text in texts]
    _refuse_errors(name, all_said)
    for field in said:
        if not field.startswith("local"):
            _refuse_difference(name, field, [one.get(field) for one in all_said])
    if check == "once":
        known[mine] = all_said
    return all_said


def _gathered(texts, group, device, timeout_s):
    on = torch.device("cpu") if cpu_works(group) else device
    raw = b"".join(text.encode()[:_ROOM].ljust(_ROOM) for text in texts)
    exchange = Exchange(group, timeout_s)
    came = exchange.finish(exchange.gather(torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(on)))
    flat = came.cpu().numpy().tobytes()
    return [flat[at:at + _ROOM].decode().rstrip() for at in range(0, len(flat), _ROOM)]


def _refuse_errors(name, all_said):
    errors = {}
    for rank, one in enumerate(all_said):
        if "error" in one:
            errors.setdefault(one["error"], []).append(rank)
    if errors:
        raise ValueError(f"{name}: " + "; ".join(f"{text} ({_ranks(ranks)})" for text, ranks in errors.items()))


def _refuse_difference(name, field, values):
    if len(set(values)) > 1:
        of = {value: [rank for rank, one in enumerate(values) if one == value] for value in values}
        raise ValueError(f"{name}: {field} differs by rank: " + ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in of.items())
                         + "; accepted: the same on all")


def _ranks(ranks):
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{', …' if len(ranks) > 8 else ''} of the group"
