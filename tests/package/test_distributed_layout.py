"""Who holds and sends what: plain numbers, against a matrix of who sees whom."""

import itertools
import random

import pytest

layout = pytest.importorskip("dfa._distributed_layout")


def matrix(lengths_q, lengths_k, left, right):
    """{(row, key)} over all sequences, by the definition."""
    seen, row, key = set(), 0, 0
    for sq, sk in zip(lengths_q, lengths_k):
        for i, j in itertools.product(range(sq), range(sk)):
            at = i + sk - sq
            if (left < 0 or j >= at - left) and (right < 0 or j <= at + right):
                seen.add((row + i, key + j))
        row, key = row + sq, key + sk
    return seen


def pairs_of(tiles, q_places, k_places):
    for tile in tiles:
        assert tile.rows > 0 and tile.keys > 0 and tile.left >= -1 and tile.right >= -1
        for i, j in itertools.product(range(tile.rows), range(tile.keys)):
            at = i + tile.keys - tile.rows
            if (tile.left < 0 or j >= at - tile.left) and (tile.right < 0 or j <= at + tile.right):
                yield q_places[tile.q + i], k_places[tile.k + j]


def problems():
    draw = random.Random(3)
    for _ in range(300):
        count = draw.choice((1, 1, 3))
        lengths = [tuple(draw.randrange(1 if count == 1 else 0, 30) for _ in range(count)) for _ in "qk"]
        if draw.random() < 0.5:
            lengths[1] = lengths[0]
        yield *lengths, draw.choice((2, 3, 4)), draw.random() < 0.5, draw.choice((-1, 0, 3, 12)), draw.choice((-1, 0, 2, 9))


def test_every_pair_is_computed_once_and_all_that_is_sent_is_seen():
    for of_q, of_k, ranks, zigzag, left, right in problems():
        done = []
        plans = [layout.ring_of(of_q, of_k, ranks, rank, zigzag, left, right) for rank in range(ranks)]
        places = [[layout.places_of(of, (ranks,), rank, zigzag) for rank in range(ranks)] for of in (of_q, of_k)]
        for rank, (own, steps) in enumerate(plans):
            done += pairs_of(own, places[0][rank], places[1][rank])
            for step in steps:
                sender = plans[step.source][1][(rank - step.source) % ranks - 1]
                assert (sender.destination, sender.sent) == (rank, step.received)
                came = [places[1][step.source][row] for begin, end in step.received for row in range(begin, end)]
                pairs = list(pairs_of(step.tiles, places[0][rank], came))
                # Keys between those that are seen go along only where a tile has none to see them.
                assert {key for _, key in pairs} <= set(came) and bool(pairs) == bool(came)
                done += pairs
        assert len(done) == len(set(done)) and set(done) == matrix(of_q, of_k, left, right), (of_q, of_k, ranks, zigzag, left, right)


def test_halves_see_what_the_whole_sees():
    for of_q, of_k, ranks, zigzag, left, right in problems():
        for rank in range(ranks):
            own, _ = layout.ring_of(of_q, of_k, ranks, rank, zigzag, left, right)
            rows, keys = range(sum(of_q)), range(sum(of_k))
            before, after = layout.halves_of(own, least=4)
            seen = list(pairs_of(own, rows, keys))
            assert len(seen) == sum(map(layout.pairs_of, own))
            assert sorted(seen) == sorted([*pairs_of(before, rows, keys), *pairs_of(after, rows, keys)])


def test_a_long_tile_is_cut_into_halves_of_about_the_same_work():
    for tile in (layout.Tile(0, 0, 4096, 4096, -1, 0), layout.Tile(0, 0, 4096, 2048, -1, -1)):
        before, after = layout.halves_of((tile,))
        work = [sum(map(layout.pairs_of, tiles)) / layout.pairs_of(tile) for tiles in (before, after)]
        assert min(work) > 0.4 and all(one.rows % 128 == 0 for one in (*before, *after))


def test_every_row_is_on_one_rank_also_of_a_mesh():
    for ways, zigzag in itertools.product(((1,), (3,), (2, 2), (3, 2)), (False, True)):
        for lengths in ((1,), (37,), (5, 0, 64)):
            ranks = ways[0] * (ways[1] if len(ways) == 2 else 1)
            places = [layout.places_of(lengths, ways, rank, zigzag) for rank in range(ranks)]
            assert sorted(itertools.chain(*places)) == list(range(sum(lengths)))


def test_zigzag_gives_all_ranks_the_same_work_under_a_causal_mask():
    def work(zigzag):
        of = []
        for rank in range(4):
            own, steps = layout.ring_of((256,), (256,), 4, rank, zigzag, -1, 0)
            of.append(sum(tile.rows * tile.keys - (tile.rows * (tile.rows - 1) // 2 if tile.right == 0 else 0)
                          for tile in itertools.chain(own, *(step.tiles for step in steps))))
        return of
    assert len(set(work(True))) == 1 and max(work(False)) > 1.6 * max(work(True))


def test_a_causal_ring_has_one_tile_a_step():
    for rank in range(4):
        own, steps = layout.ring_of((256,), (256,), 4, rank, True, -1, 0)
        assert len(own) == 1 and all(len(step.tiles) == 1 for step in steps)


def test_a_window_sends_only_what_is_seen():
    def sent(left, zigzag):
        return sum(end - begin for rank in range(8) for step in layout.ring_of((8192,), (8192,), 8, rank, zigzag, left, 0)[1]
                   for begin, end in step.sent)
    assert sent(100, False) == 7 * 100  # the last rows of each rank, to its neighbour
    assert sent(100, True) == 14 * 100  # of 16 pieces, two of which lie side by side on one rank
    assert sent(-1, True) < 7 * 8192


def test_what_ranks_say_has_room_however_many_they_are(monkeypatch):
    """A group's ranks and an error, the longest that may be, are still JSON when they have been cut to size."""
    import json

    from dfa import _distributed_agree as agreement
    places = agreement.Places.__new__(agreement.Places)
    places.groups, places.ways, places.ranks = [None], (1024,), 1024
    monkeypatch.setattr(agreement.dist, "get_process_group_ranks", lambda group: list(range(1024)))
    assert places.text().startswith("1024 ranks of checksum ")
    monkeypatch.setattr(agreement.dist, "get_process_group_ranks", lambda group: [0, 3])
    assert places.text() == "[0, 3]"
    monkeypatch.setattr(agreement, "_gathered", lambda texts, *_: [text.encode()[:agreement._ROOM].decode() for text in texts])
    with pytest.raises(ValueError, match="…"):
        agreement.agree("call", places, None, {}, "…" * 5000, "always", None)
    assert json.dumps({"error": "…" * agreement._LONGEST_ERROR}).isascii()


@pytest.mark.parametrize("tokens, heads, margin", [(32768, (16, 16), 8), (131072, (16, 16), 0), (32768, (32, 8), 0), (4096, (32, 8), 8)])
def test_room_for_a_transfer_that_takes_a_tenth_of_the_products(tokens, heads, margin):
    torch = pytest.importorskip("torch")
    from dfa._distributed_tiles import Options, margin_beside
    own, steps = layout.ring_of((tokens,), (tokens,), 2, 0, True, -1, 0)
    q, k = (torch.empty(1, h, tokens // 2, 128, dtype=torch.bfloat16, device="meta") for h in heads)
    for given, wanted in ((None, margin), (0, 0), (16, 16)):
        assert margin_beside(Options(1.0, False, 0.0, given), q, k, k, own, steps[0]) == wanted
