#pragma once

#include "kernels/forward/sm90_forward.cuh"
#include "kernels/forward/sm90_paged_args.h"

// Hopper's forward over keys in pages: sm90_forward of packed sequences, whose tiles of keys come
// in boxes of rows that lie in one page.
//
// A box has rows in a multiple of eight, so that boxes side by side leave the tile's swizzle. Each
// counts rows back from the end of its own sequence, as boxes of packed keys do, so that what a
// page has behind it, NaN perhaps, reads as zeros; so does a box behind the end, or of an entry
// that is no page of the cache. A warp starts a short box in the time in which the copy engine
// takes several (0025). So the producer takes work tiles and copies q alone, and the other warps of
// its warpgroup, the issuers, copy the keys: it tells them of each work tile, and each starts its
// share of every tile's boxes. Which pages those lie in an issuer's lanes copy from the block table
// to shared memory, kPagesAhead tiles ahead.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90PagedForward : Sm90Forward<kConfig> {
  using Base = Sm90Forward<kConfig>;
  using Base::kBlockK, Base::kElement, Base::kPagesAt;
  using typename Base::Ring, typename Base::Rings, typename Base::WorkTile;
  using Args = Sm90PagedForwardArgs;
  static_assert(kConfig.varlen && kConfig.paged && !Base::kPaired);
  static_assert((kPageSlots & (kPageSlots - 1)) == 0 && kPageSlots >= kPagesAhead + 2);
  static constexpr bool kHelped = true;

  // Of a work tile, what copies of its keys go by.
  struct PagedKeys {
    int batch, rows, head;
    TileRange tiles;
  };

  // How issuers are told of work tiles: two slots by turns, each with a barrier for "told" and one
  // for "read". How many there were for each stands in shared memory, too.
  struct Told {
    static constexpr unsigned kSlots = 2, kWordsBytes = 32;
    unsigned at, n;

    static DFA_DEVICE Told nth(const Rings& rings, unsigned n) {
      return {rings.smem + kPagesAt, n};
    }
    DFA_DEVICE unsigned words() const { return at + n % kSlots * kWordsBytes; }
    DFA_DEVICE unsigned told() const { return at + kSlots * kWordsBytes + n % kSlots * 16; }
    DFA_DEVICE unsigned read() const { return told() + 8; }
    DFA_DEVICE unsigned phase() const { return n / kSlots % 2; }
    // Of the producer, who is -1, or an issuer.
    static DFA_DEVICE unsigned count(const Rings& rings, int who) {
      return rings.smem + kPagesAt + kSlots * (kWordsBytes + 16) + 4 * (who + 1);
    }
  };
  static constexpr unsigned kPlacesAt = kPagesAt + kToldBytes;
  static_assert(Told::kSlots * (Told::kWordsBytes + 16) + 16 == kToldBytes && kPagesAt % 8 == 0);

  static DFA_DEVICE void init_issuers(const Rings& rings) {
    for (unsigned n = 0; n < Told::kSlots; ++n) {
      const Told told = Told::nth(rings, n);
      ptx::init_barrier(told.told(), 1);
      ptx::init_barrier(told.read(), kIssuers);
    }
    for (int who = -1; who < kIssuers; ++who) ptx::store_shared(Told::count(rings, who), 0);
  }

  // The producer.
  static DFA_DEVICE void copy(const Args& a, Rings rings) {
    Base::template copy_all<KeysInPages>(a, rings);
    tell({.batch = -1}, rings);
  }

  struct KeysInPages {
    static DFA_DEVICE void start(const Args&, const WorkTile& work, const TileRange& tiles,
                                 const Rings& rings) {
      tell({work.seq.batch, work.seq.k_rows, work.kv_head, tiles}, rings);
    }
    static DFA_DEVICE void rest(const Args&, const WorkTile&, const TileRange&, const Rings&) {}
  };

  // An issuer, all of its lanes.
  static DFA_DEVICE void issue(const Args& a, Rings rings, int issuer) {
    for (;;) {
      const PagedKeys keys = take(rings, issuer);
      if (keys.batch < 0) return;
#pragma unroll 1
      for (int i = 1; i <= kPagesAhead; ++i) look_up(a, keys, keys.tiles.end - i, rings, issuer);
#pragma unroll 1
      for (int tile = keys.tiles.end - 1; tile >= keys.tiles.begin; --tile) {
        load_k(a, keys, tile, rings, issuer);
        if (tile + 1 < keys.tiles.end) load_v(a, keys, tile + 1, rings, issuer);
      }
      if (keys.tiles.end > keys.tiles.begin) load_v(a, keys, keys.tiles.begin, rings, issuer);
    }
  }

 private:
  static DFA_DEVICE int lane() { return static_cast<int>(ptx::thread_index() % 32); }

  static DFA_DEVICE void tell(const PagedKeys& keys, const Rings& rings) {
    const unsigned n = ptx::load_shared(Told::count(rings, -1));
    ptx::store_shared(Told::count(rings, -1), n + 1);
    const Told told = Told::nth(rings, n);
    ptx::wait(told.read(), told.phase() ^ 1);
    const int words[] = {keys.batch, keys.rows, keys.head, keys.tiles.begin, keys.tiles.end};
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      ptx::store_shared(told.words() + 4 * i, static_cast<unsigned>(words[i]));
    }
    ptx::arrive(told.told());
  }
  static DFA_DEVICE PagedKeys take(const Rings& rings, int issuer) {
    const unsigned n = ptx::load_shared(Told::count(rings, issuer));
    const Told told = Told::nth(rings, n);
    ptx::wait(told.told(), told.phase());
    const auto word = [&](int i) {
      return static_cast<int>(ptx::load_shared(told.words() + 4 * i));
    };
    const PagedKeys keys{word(0), word(1), word(2), {word(3), word(4)}};
    __syncwarp();
    if (ptx::elect()) {
      ptx::store_shared(Told::count(rings, issuer), n + 1);
      ptx::arrive(told.read());
    }
    __syncwarp();
    return keys;
  }

  // Of an issuer and a tile, where each box lies: the page, and where in it the box begins.
  static DFA_DEVICE unsigned places(const Rings& rings, int tile, int issuer) {
    return rings.smem + kPlacesAt +
           (issuer * kPageSlots + (tile & (kPageSlots - 1))) * kConfig.box_places_bytes();
  }

  // A lane a box starts copies of the entries of the table that a tile's boxes lie in; those behind
  // the end there may be no columns for. A group of copies a tile, also where there is no such
  // tile.
  static DFA_DEVICE void look_up(const Args& a, const PagedKeys& keys, int tile, const Rings& rings,
                                 int issuer) {
    const int in_tile = lane() * a.box_rows, row = tile * kBlockK + in_tile;
    if (tile >= 0 && in_tile < kBlockK && row < keys.rows) {
      // Of row / page, by the inverse: right, or 1 too small.
      const unsigned at = static_cast<unsigned>(row),
                     page = static_cast<unsigned>(a.args.paged.page);
      unsigned column =
          static_cast<unsigned>(static_cast<unsigned long long>(at) * a.page_inverse >> 32);
      if (at - column * page >= page) ++column;
      const unsigned to = places(rings, tile, issuer) + kBoxPlaceBytes * lane();
      ptx::store_shared(to + 4, at - column * page);
      ptx::copy_4(to, a.args.paged.block_table + keys.batch * a.args.paged.table_row + column);
    }
    ptx::commit_copies();
  }

  static DFA_DEVICE void load_k(const Args& a, const PagedKeys& keys, int tile, Rings& rings,
                                int issuer) {
    __syncwarp();  // the place of these in shared memory is read no longer
    look_up(a, keys, tile - kPagesAhead, rings, issuer);
    ptx::wait_copies<kPagesAhead>();
    __syncwarp();
    load_boxes<kConfig.head_dim>(a, a.k, a.k_page, 0, keys, tile, rings, rings.k, issuer);
  }
  // Later than k of the tile before this one, whose places are still there.
  static DFA_DEVICE void load_v(const Args& a, const PagedKeys& keys, int tile, Rings& rings,
                                int issuer) {
    load_boxes<kConfig.value_dim>(a, a.v, a.v_page, a.v_turn, keys, tile, rings, rings.v, issuer);
  }

  // An issuer's boxes of a tile of k or v, whose pages lie `page_step` rows apart: whole rounds of
  // rows, then panels of what is left by turns. The one whose turn it is first says how much all of
  // them bring, which others may begin to bring before. Who has none does not wait.
  template <int kColumns>
  static DFA_DEVICE void load_boxes(const Args& a, const TensorMap& map, int page_step,
                                    int first_turn, const PagedKeys& keys, int tile,
                                    const Rings& rings, Ring& ring, int issuer) {
    constexpr int kPanels = panels(kElement, kColumns);
    const int turn = issuer >= first_turn ? issuer - first_turn : issuer - first_turn + kIssuers;
    const bool has_any = a.left_row > 0 || turn < a.left_boxes * kPanels;
    if (has_any && ptx::elect()) {
      ring.wait_empty();
      if (turn == 0) ptx::arrive_expecting(ring.full(), kPanels * panel_bytes(kBlockK));
      const unsigned at = places(rings, tile, issuer);
      int box = issuer;
#pragma unroll 1
      for (int row = issuer * a.box_rows; row < a.left_row; row += kIssuers * a.box_rows) {
        const Box one = box_of(a, keys, page_step, at + kBoxPlaceBytes * box, tile * kBlockK + row);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) load_panel(one, map, ring, row, panel, keys);
        box += kIssuers;
      }
#pragma unroll 1
      for (int left = turn; left < a.left_boxes * kPanels; left += kIssuers) {
        const int row = a.left_row + left / kPanels * a.box_rows;
        const int nth = a.first_left + left / kPanels;
        load_panel(box_of(a, keys, page_step, at + kBoxPlaceBytes * nth, tile * kBlockK + row), map,
                   ring, row, left % kPanels, keys);
      }
    }
    ring.next();
  }

  struct Box {
    int rows, end;  // those of the sequence, and where they end in the cache
  };
  static DFA_DEVICE Box box_of(const Args& a, const PagedKeys& keys, int page_step, unsigned place,
                               int row) {
    const unsigned page = ptx::load_shared(place);
    const int left = keys.rows - row, begin = static_cast<int>(ptx::load_shared(place + 4));
    if (left <= 0 || page >= static_cast<unsigned>(a.args.paged.pages)) return {0, 0};
    const int rows = left < a.box_rows ? left : a.box_rows;
    return {rows, static_cast<int>(page) * page_step + begin + rows};
  }
  static DFA_DEVICE void load_panel(const Box& box, const TensorMap& map, const Ring& ring, int row,
                                    int panel, const PagedKeys& keys) {
    ptx::load_box<true>(ring.tile() + panel_bytes(row) + panel * panel_bytes(kBlockK), map,
                        ring.full(), panel * panel_columns(kElement), kBoxOrigin - box.rows,
                        keys.head, box.end);
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_paged_forward(const __grid_constant__ Sm90PagedForwardArgs a) {
  run_sm90_forward<Sm90PagedForward<kConfig>>(a);
}

}  // namespace dfa
