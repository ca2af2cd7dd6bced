"""What N cards take, by one card's time and the link: products, transfers beside them, copies and merges. docs/design/0027.

Usage: PYTHONPATH=python python3 benchmarks/ring/model.py [--forward 620] [--backward 500] [--link 300] [--latency 15]

Prints the share of linear by rows and cards. Times are of the rank that takes longest. Products take one card's time in proportion to the pairs of query and key that they see.
A transfer takes its bytes over the link's bandwidth and a latency, and lies beside the products of the step before; copies
(what is packed, reordered, merged) take their bytes over the memory's bandwidth and lie beside nothing; no step is shorter than the
host takes to queue it.
"""

import argparse
from typing import NamedTuple

from dfa._distributed_layout import halves_of, pairs_of, ring_of, rows_of


class Card(NamedTuple):
    """Measured: forward_s and backward_s of the whole problem on one card, link_gb_s each way at once, latency_s of a transfer.
    Assumed: memory_gb_s of copies; transfer_sms, the part of the multiprocessors that a transfer takes from products; host_s, what
    the host takes to queue a step."""

    forward_s: float
    backward_s: float
    link_gb_s: float
    latency_s: float
    memory_gb_s: float = 2000
    transfer_sms: float = 0.06
    host_s: float = 150e-6


class Sizes(NamedTuple):
    tokens: int
    hq: int
    hk: int
    d: int
    causal: bool = True
    window: tuple | None = None
    passes: str = "fwd"
    element: int = 2  # bytes

    def q_row(self):
        return self.hq * self.d * self.element

    def kv_row(self):
        return 2 * self.hk * self.d * self.element

    def sides(self):
        left, right = self.window or (-1, -1)
        return left, 0 if self.causal else right

    def backward(self):
        return self.passes == "fwd+bwd"


def sent_bytes(method, ways, **sizes):
    """Of the rank that sends most."""
    s = Sizes(**sizes)
    if len(ways) == 2:
        inner = s._replace(hq=s.hq // ways[1], hk=s.hk // ways[1])
        return _exchanged(s, s.tokens // (ways[0] * ways[1]), ways[1]) + max(_ring_bytes(inner, ways[0]))
    ranks, = ways
    rows = -(-s.tokens // ranks)
    if method == "ring":
        return max(_ring_bytes(s, ranks))
    if method == "allgather":
        gathered = (ranks - 1) * rows * s.kv_row()
        return gathered * (1 + (1 + 4 / s.element if s.backward() else 0))  # sums of gradients are float32
    return _exchanged(s, rows, ranks)


def _exchanged(s, rows, ranks):
    once = rows * (2 * s.q_row() + s.kv_row()) * (ranks - 1) / ranks  # q, k, v there and o back
    return once * (2 if s.backward() else 1)


def _ring_bytes(s, ranks):
    """Keys and values in the forward; in the backward these again, and their gradients back to whose they are."""
    for rank in range(ranks):
        _, steps = ring_of((s.tokens,), (s.tokens,), ranks, rank, s.causal, *s.sides())
        keys = sum(_rows(step.sent) for step in steps)
        back = sum(_rows(step.received) for step in steps)
        yield s.kv_row() * (keys + (keys + back if s.backward() else 0))


def _rows(spans):
    return sum(end - begin for begin, end in spans)


def seconds(method, ways, card, **sizes):
    """Of a call of `method` on ranks of `ways`: (ranks,) or (ring, heads)."""
    s = Sizes(**sizes)
    if len(ways) == 2:
        ring, heads = ways
        inner = s._replace(hq=s.hq // heads, hk=s.hk // heads)
        card = card._replace(forward_s=card.forward_s / heads, backward_s=card.backward_s / heads)
        return _exchange_s(s, card, s.tokens // (ring * heads), heads) + _ring_s(inner, card, ring)
    ranks, = ways
    if ranks == 1:
        return card.forward_s + (card.backward_s if s.backward() else 0)
    if method == "ring":
        return _ring_s(s, card, ranks)
    if method == "allgather":
        return _gather_s(s, card, ranks)
    products = (card.forward_s + (card.backward_s if s.backward() else 0)) / ranks
    return products + _exchange_s(s, card, -(-s.tokens // ranks), ranks)


def _link_s(card, size):
    return card.latency_s + size / card.link_gb_s * 1e-9 if size else 0


def _copy_s(card, size):
    return size / card.memory_gb_s * 1e-9


def _exchange_s(s, card, rows, ranks):
    size = _exchanged(s, rows, ranks)
    return _link_s(card, size) + 3 * card.latency_s + _copy_s(card, 4 * size)  # each is read and written on both sides


def _ring_s(s, card, ranks):
    total = sum(pairs_of(tile) for rank in range(ranks) for tile in _tiles(s, ranks, rank))
    return max(_ring_of_rank_s(s, card, ranks, rank, total) for rank in range(ranks))


def _tiles(s, ranks, rank):
    own, steps = _plan(s, ranks, rank)
    return [*own, *(tile for step in steps for tile in step.tiles)]


def _plan(s, ranks, rank):
    return ring_of((s.tokens,), (s.tokens,), ranks, rank, s.causal, *s.sides())


def _ring_of_rank_s(s, card, ranks, rank, total):
    own, steps = _plan(s, ranks, rank)

    def share(tiles):
        return sum(map(pairs_of, tiles)) / total
    keys = [s.kv_row() * max(_rows(step.sent), _rows(step.received)) for step in steps]
    merged = sum(tile.rows for tile in _tiles(s, ranks, rank)) * s.q_row()  # what is read of parts; written is o once
    rows = rows_of((s.tokens,), (ranks,), rank, s.causal)
    time = _copy_s(card, merged + rows * s.q_row())
    time += _beside(card, [card.forward_s * share(tiles) for tiles in (own, *(step.tiles for step in steps))], [*keys, 0])
    if s.backward():
        before, after = halves_of(own)
        products = [card.backward_s * share(tiles) for tiles in (before, *(step.tiles for step in steps), after)]
        moved = [*keys, 0, 0]  # beside each: the next step's keys, and the gradients of the step before
        for at, size in enumerate(keys):
            moved[at + 2] += size
        time += _beside(card, products, moved)
        time += _copy_s(card, 2 * merged + 2 * sum(keys) + rows * (s.q_row() + s.kv_row()))
    return time


def _beside(card, products, moved):
    """Step by step: products, with the next step's transfer beside them, and what is packed before it."""
    time = 0.0
    for product, size in zip(products, moved):
        transfer = _link_s(card, size)
        time += _copy_s(card, 2 * size) + max(product + card.transfer_sms * min(transfer, product), transfer, card.host_s)
    return time


def _gather_s(s, card, ranks, parts=4):
    rows = -(-s.tokens // ranks)
    size = (ranks - 1) * rows * s.kv_row() / parts
    copies = _copy_s(card, 4 * ranks * rows * s.kv_row() / parts)
    time = _link_s(card, size) + _beside(card, [card.forward_s / ranks / parts + copies] * parts, [size] * (parts - 1) + [0])
    if s.backward():
        given = _link_s(card, size * 4 / s.element) + 4 * copies
        time += _link_s(card, size) + _beside(card, [card.backward_s / ranks / parts + copies + given] * parts,
                                              [size] * (parts - 1) + [0])
    return time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value, unit in (("forward", 620, "TFLOP/s of one card"), ("backward", 500, "TFLOP/s of one card"),
                              ("link", 300, "GB/s each way at once"), ("latency", 15, "µs of a transfer")):
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{unit}; {value} unless given")
    given = parser.parse_args()
    print("| tokens, heads, passes | method | 2 | 4 | 8 | 64 |\n|---|---|---|---|---|---|")
    for tokens in (32768, 131072):
        for hq, hk in ((16, 16), (32, 8)):
            flops = 2 * hq * 128 * tokens ** 2
            card = Card(flops / given.forward * 1e-12, 2.5 * flops / given.backward * 1e-12, given.link, given.latency * 1e-6)
            for passes in ("fwd", "fwd+bwd"):
                sizes = {"tokens": tokens, "hq": hq, "hk": hk, "d": 128, "passes": passes}
                one = seconds("ring", (1,), card, **sizes)
                for method in ("ring", "allgather", "alltoall"):
                    shares = [f"{one / n / seconds(method, (n,), card, **sizes):.2f}" if method != "alltoall" or hk % n == 0 else "-"
                              for n in (2, 4, 8, 64)]
                    print(f"| {tokens // 1024}k h{hq}/{hk} {passes} | {method} | " + " | ".join(shares) + " |")


if __name__ == "__main__":
    main()
