"""Who holds which rows of a sequence, and what a rank's queries see of another's keys. Plain numbers, without PyTorch.

A sequence is cut into pieces as torch.tensor_split cuts, so that any length will do: a rank's is one piece (contiguous), or
pieces r and 2n-1-r of 2n (zigzag), by which all ranks have the same work under a causal mask. Packed sequences are cut each for
itself, and a rank's rows of all of them follow each other.
"""

from functools import lru_cache
from typing import NamedTuple


class Segment(NamedTuple):
    """Rows that lie together in a rank's tensor and in their sequence."""

    sequence: int
    local: int  # the first in the tensor
    position: int  # the first in the sequence
    rows: int


class Tile(NamedTuple):
    """One call of a kernel: queries and keys that lie together, and the window as the kernel takes it."""

    q: int
    k: int
    rows: int
    keys: int
    left: int
    right: int


class Step(NamedTuple):
    """What a rank computes with another's keys, and sends to a third meanwhile. Spans are (begin, end) of local rows."""

    source: int
    received: tuple
    tiles: tuple
    destination: int
    sent: tuple


def cut(length, parts):
    """(begin, end) of each part, the longer ones first, as torch.tensor_split cuts."""
    base, more = divmod(length, parts)
    begins = [base * part + min(part, more) for part in range(parts + 1)]
    return list(zip(begins, begins[1:]))


def pieces_of(length, ways, rank, zigzag):
    """(begin, end) of a rank's pieces. ways: (ranks,), or (ring, heads) of a mesh: cut over the ring first, and each part of it,
    as it lies, over the ranks that exchange heads."""
    ring, *rest = ways
    at, within = divmod(rank, rest[0]) if rest else (rank, 0)
    if zigzag:
        parts = cut(length, 2 * ring)
        pieces = [parts[at], parts[2 * ring - 1 - at]]
    else:
        pieces = [cut(length, ring)[at]]
    if rest:
        begin, end = cut(sum(e - b for b, e in pieces), rest[0])[within]
        pieces = _within(pieces, begin, end)
    return [(b, e) for b, e in pieces if e > b]


def _within(pieces, begin, end):
    """The rows from begin to end of pieces that follow each other."""
    done = 0
    for b, e in pieces:
        yield b + min(max(begin - done, 0), e - b), b + min(max(end - done, 0), e - b)
        done += e - b


@lru_cache(maxsize=1024)
def segments_of(lengths, ways, rank, zigzag):
    local, segments = 0, []
    for sequence, length in enumerate(lengths):
        for begin, end in pieces_of(length, ways, rank, zigzag):
            segments.append(Segment(sequence, local, begin, end - begin))
            local += end - begin
    return tuple(segments)


def rows_of(lengths, ways, rank, zigzag):
    return sum(segment.rows for segment in segments_of(lengths, ways, rank, zigzag))


def places_of(lengths, ways, rank, zigzag):
    """For each local row its place among the rows of all sequences."""
    begins, begin = [], 0
    for length in lengths:
        begins.append(begin)
        begin += length
    return [begins[s.sequence] + s.position + row for s in segments_of(lengths, ways, rank, zigzag) for row in range(s.rows)]


class Order(NamedTuple):
    """How rows that lie rank after rank come into the order of their sequences."""

    rows: tuple  # of each rank
    pieces: tuple  # (rank, first row there, rows, first row in order), by the last


@lru_cache(maxsize=256)
def order_of(lengths, ways, ring_rank, zigzag):
    """Of the ranks that exchange heads with each other: all, or of a mesh those at this place of the ring, whose rows then lie as
    the ring has them."""
    ranks = range(ring_rank * ways[-1], (ring_rank + 1) * ways[-1])
    to = {}
    for segment in segments_of(lengths, ways[:-1] or (1,), ring_rank, zigzag and len(ways) == 2):
        to.setdefault(segment.sequence, []).append(segment)
    pieces = []
    for at, rank in enumerate(ranks):
        for sequence, local, position, rows in segments_of(lengths, ways, rank, zigzag):
            there = next(one for one in to[sequence] if one.position <= position < one.position + one.rows)
            pieces.append((at, local, rows, there.local + position - there.position))
    return Order(tuple(rows_of(lengths, ways, rank, zigzag) for rank in ranks), tuple(sorted(pieces, key=lambda piece: piece[3])))


def whole(lengths):
    """The segments of a tensor that has all rows in their order."""
    return segments_of(lengths, (1,), 0, False)


def tile_of(q, k, left, right, offset):
    """What rows of segment q see of segment k, or None. Query i of its sequence sees keys i + offset - left to
    i + offset + right, -1 for no limit. Rows that see nothing and keys that nobody sees are cut off, by which both sides of the
    window come out as 0 or more, the numbers that kernels take."""
    ahead = q.position + offset - k.position  # of the first query's own place before the first key
    first, last, low, high = 0, q.rows, 0, k.rows
    if left >= 0:
        last = min(last, k.rows - ahead + left)
    if right >= 0:
        first = max(first, -ahead - right)
        high = min(high, last + ahead + right)
    if left >= 0:
        low = max(low, first + ahead - left)
    if first >= last or low >= high:
        return None
    rows, keys, shift = last - first, high - low, ahead + last - high
    left = -1 if left < 0 or left - shift >= keys - 1 else left - shift
    right = -1 if right < 0 or right + shift >= rows - 1 else right + shift
    return Tile(q.local + first, k.local + low, rows, keys, left, right)


@lru_cache(maxsize=256)
def tiles_of(q_segments, k_segments, left, right, offsets):
    """All tiles of one rank's queries and another's keys, as few as there may be."""
    tiles = []
    for sequence in sorted({segment.sequence for segment in q_segments}):
        q = [segment for segment in q_segments if segment.sequence == sequence]
        k = [segment for segment in k_segments if segment.sequence == sequence]
        if (left, right, offsets[sequence]) == (-1, 0, 0) and [s[2:] for s in q] == [s[2:] for s in k]:
            rows = sum(segment.rows for segment in q)  # the order of rows is all that a causal mask asks for
            tiles.append(Tile(q[0].local, k[0].local, rows, rows, -1, 0 if rows > 1 else -1))
            continue
        pairs = [tile_of(one, other, left, right, offsets[sequence]) for one in q for other in k]
        tiles += _joined([tile for tile in pairs if tile])
    return tuple(tiles)


def _joined(tiles):
    """Tiles without a mask that lie side by side, as one."""
    done = []
    for tile in tiles:
        before = done[-1] if done else None
        if before and before[4:] == tile[4:] == (-1, -1):
            if (before.q, before.rows, before.k + before.keys) == (tile.q, tile.rows, tile.k):
                done[-1] = before._replace(keys=before.keys + tile.keys)
                continue
            if (before.k, before.keys, before.q + before.rows) == (tile.k, tile.keys, tile.q):
                done[-1] = before._replace(rows=before.rows + tile.rows)
                continue
        done.append(tile)
    return done


def pairs_of(tile):
    """How many pairs of query and key a tile sees."""
    ahead = tile.keys - tile.rows

    def up_to(limit):  # pairs of row i with keys up to i + limit
        first, full = max(0, -limit), max(0, tile.keys - 1 - limit)  # the first row that sees one; the first that sees all
        stairs = max(0, min(full, tile.rows) - first)
        return stairs * (first + limit + 1) + stairs * (stairs - 1) // 2 + max(0, tile.rows - max(full, first)) * tile.keys
    seen = up_to(ahead + tile.right) if tile.right >= 0 else tile.rows * tile.keys
    return seen - (up_to(ahead - tile.left - 1) if tile.left >= 0 else 0)


@lru_cache(maxsize=256)
def halves_of(tiles, least=256):
    """The tiles in two groups of about the same work: one tile of at least so many rows is cut, below them it stays in the first."""
    if len(tiles) == 1:
        tile, = tiles
        if tile.rows < least:
            return tiles, ()
        cut_at = tile.rows // 2 if tile.right < 0 else tile.rows * 3 // 4  # under a causal mask the last rows see most
        cut_at -= cut_at % min(128, least)
        keys = Segment(0, tile.k, 0, tile.keys)
        rows = Segment(0, tile.q, 0, cut_at), Segment(0, tile.q + cut_at, cut_at, tile.rows - cut_at)
        return tuple(tuple(one for one in [tile_of(part, keys, tile.left, tile.right, tile.keys - tile.rows)] if one) for part in rows)
    done, whole_work = 0, sum(map(pairs_of, tiles))
    for at, tile in enumerate(tiles):
        if 2 * done >= whole_work:
            return tiles[:at], tiles[at:]
        done += pairs_of(tile)
    return tiles, ()


def spans_of(tiles):
    """(begin, end) of the keys that tiles see, those that touch as one."""
    spans = []
    for begin, end in sorted((tile.k, tile.k + tile.keys) for tile in tiles):
        if spans and begin <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((begin, end))
    return tuple(spans)


def placed(tiles, spans):
    """The tiles with keys counted in a tensor of these spans alone."""
    def place(key):
        done = 0
        for begin, end in spans:
            if begin <= key < end:
                return done + key - begin
            done += end - begin
        raise AssertionError("a tile outside its spans")
    return tuple(tile._replace(k=place(tile.k)) for tile in tiles)


@lru_cache(maxsize=256)
def ring_of(lengths_q, lengths_k, ranks, rank, zigzag, left, right):
    """(tiles of the rank's own keys, a Step for each other rank). In step t all send to rank + t what that one sees of theirs."""
    q, k = ([segments_of(lengths, (ranks,), r, zigzag) for r in range(ranks)] for lengths in (lengths_q, lengths_k))
    offsets = tuple(sk - sq for sq, sk in zip(lengths_q, lengths_k))
    steps = []
    for t in range(1, ranks):
        source, destination = (rank - t) % ranks, (rank + t) % ranks
        tiles = tiles_of(q[rank], k[source], left, right, offsets)
        received = spans_of(tiles)
        sent = spans_of(tiles_of(q[destination], k[rank], left, right, offsets))
        steps.append(Step(source, received, placed(tiles, received), destination, sent))
    return tiles_of(q[rank], k[rank], left, right, offsets), tuple(steps)
