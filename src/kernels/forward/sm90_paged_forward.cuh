#pragma once

#include "kernels/forward/sm90_forward.cuh"
#include "kernels/forward/sm90_paged_args.h"
#include "kernels/schedule/page_place.h"

// Hopper's forward over keys in pages: sm90_forward of packed sequences, whose tiles of keys come
// in boxes of rows that lie in one page.
//
// A box has rows in a multiple of eight, so that boxes side by side leave the tile's swizzle. Each
// counts rows back from the end of its own sequence, as boxes of packed keys do, so that what a
// page has behind it, NaN perhaps, reads as zeros; so does a box behind the end, or of an entry
// that is no page of the cache. A warp starts a short box in the time in which the copy engine
// takes several (0025). So the producer takes work tiles and copies q alone, and other warps of its
// warpgroup copy the keys, of which it tells them: one k, one v, and where a tile has many boxes a
// third one a quarter of both. A lane a box looks its page up, kPagesAhead tiles ahead. The
// producer takes the next work tile only when those have looked up the last pages of this one: a
// block that takes work tiles earlier has some left when others have none.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90PagedForward : Sm90Forward<kConfig> {
  using Base = Sm90Forward<kConfig>;
  using Base::kBlockK, Base::kElement, Base::kPagesAt;
  using typename Base::Ring, typename Base::Rings, typename Base::WorkTile;
  using Args = Sm90PagedForwardArgs;
  static_assert(kConfig.varlen && kConfig.paged && !Base::kPaired);
  static_assert(kBlockK / kLeastBoxRows <= 32);  // a box a lane
  static constexpr bool kHelped = true;

  // Of a work tile, what copies of its keys go by.
  struct PagedKeys {
    int batch, rows, head;
    TileRange tiles;
  };

  // How those who copy keys are told of work tiles: by words, with a barrier for "told" and one for
  // "looked up". How many a warp has told of, or read, stands in shared memory, too.
  struct Told {
    static constexpr unsigned kWordsBytes = 32;
    unsigned words, n;

    DFA_DEVICE unsigned told() const { return words + kWordsBytes; }
    DFA_DEVICE unsigned looked_up() const { return told() + 8; }
    DFA_DEVICE unsigned phase() const { return n % 2; }
    static DFA_DEVICE unsigned at(const Rings& rings) { return rings.smem + kPagesAt; }
    static DFA_DEVICE unsigned count(const Rings& rings, int warp) {
      return at(rings) + kWordsBytes + 16 + 4 * warp;
    }
    // The next one that a warp tells of, or reads.
    static DFA_DEVICE Told next(const Rings& rings, int warp) {
      const unsigned n = ptx::load_shared(count(rings, warp));
      ptx::store_shared(count(rings, warp), n + 1);
      return {at(rings), n};
    }
    static DFA_DEVICE Told last(const Rings& rings) {
      return {at(rings), ptx::load_shared(count(rings, 0)) - 1};
    }
  };
  static_assert(Told::kWordsBytes + 16 + 16 == kToldBytes && kPagesAt % 8 == 0);

  static DFA_DEVICE void init_issuers(const Args& a, const Rings& rings) {
    const Told told{Told::at(rings), 0};
    ptx::init_barrier(told.told(), 1);
    ptx::init_barrier(told.looked_up(), a.third_begin < a.boxes ? 3 : 2);
    for (int warp = 0; warp < 4; ++warp) ptx::store_shared(Told::count(rings, warp), 0);
  }

  // What the producer does.
  static DFA_DEVICE void copy(const Args& a, Rings rings) {
    Base::template copy_all<KeysInPages>(a, rings);
    tell({.batch = -1}, rings);
  }

  struct KeysInPages {
    static DFA_DEVICE void start(const Args&, const WorkTile& work, const TileRange& tiles,
                                 const Rings& rings) {
      tell({work.seq.batch, work.seq.k_rows, work.kv_head, tiles}, rings);
    }
    static DFA_DEVICE void rest(const Args&, const WorkTile&, const TileRange&,
                                const Rings& rings) {
      const Told told = Told::last(rings);
      ptx::wait(told.looked_up(), told.phase());
    }
  };

  // What the other warps do.
  static DFA_DEVICE void issue(const Args& a, const Rings& rings, int warp) {
    if (warp == 1) issue<1, true, false>(a, rings);
    if (warp == 2) issue<2, false, true>(a, rings);
    if (warp == 3 && a.third_begin < a.boxes) issue<3, true, true>(a, rings);
  }

 private:
  // Its words have been read: all before it were looked up.
  static DFA_DEVICE void tell(const PagedKeys& keys, const Rings& rings) {
    const Told told = Told::next(rings, 0);
    const int words[] = {keys.batch, keys.rows, keys.head, keys.tiles.begin, keys.tiles.end};
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      ptx::store_shared(told.words + 4 * i, static_cast<unsigned>(words[i]));
    }
    ptx::arrive(told.told());
  }
  // The lane that says that all is looked up reads for its warp.
  static DFA_DEVICE PagedKeys read(const Rings& rings, int warp) {
    uint4 words{};
    unsigned end = 0;
    if (ptx::thread_index() % 32 == 0) {
      const Told told = Told::next(rings, warp);
      ptx::wait(told.told(), told.phase());
      words = ptx::load_words_4(told.words);
      end = ptx::load_shared(told.words + 16);
    }
    const auto all = [](unsigned word) {
      return static_cast<int>(__shfl_sync(ptx::kWholeWarp, word, 0));
    };
    return {all(words.x), all(words.y), all(words.z), {all(words.w), all(end)}};
  }
  static DFA_DEVICE void say_looked_up(const Rings& rings) {
    if (ptx::thread_index() % 32 == 0) ptx::arrive(Told{Told::at(rings), 0}.looked_up());
  }

  // Of a lane's box: its first row, the column of the table that has its page, and where in that it
  // begins.
  struct Place {
    int row;
    unsigned column, begin;
  };
  static DFA_DEVICE Place place_of(const Args& a, int tile) {
    const int row = tile * kBlockK + static_cast<int>(ptx::thread_index() % 32) * a.box_rows;
    const PagePlace at = page_place(static_cast<unsigned>(row),
                                    static_cast<unsigned>(a.args.paged.page), a.page_inverse);
    return {row, at.column, at.begin};
  }

  // A lane's page; none where there is no such tile, and behind the end, where the table may have
  // no columns.
  static DFA_DEVICE int look_up(const Args& a, const PagedKeys& keys, int tile) {
    const Place place = place_of(a, tile);
    if (tile < 0 || place.row >= keys.rows) return -1;
    return a.args.paged.block_table[keys.batch * a.args.paged.table_row + place.column];
  }

  // A warp's boxes of every tile, of k, of v, or of both.
  template <int kWarp, bool kOfK, bool kOfV>
  static DFA_DEVICE void issue(const Args& a, Rings rings) {
    for (;;) {
      const PagedKeys keys = read(rings, kWarp);
      if (keys.batch < 0) return;
      int ahead[kPagesAhead];
#pragma unroll
      for (int i = 0; i < kPagesAhead; ++i) ahead[i] = look_up(a, keys, keys.tiles.end - 1 - i);
      if (keys.tiles.end - keys.tiles.begin <= kPagesAhead) say_looked_up(rings);
#pragma unroll 1
      for (int tile = keys.tiles.end - 1; tile >= keys.tiles.begin; --tile) {
        const int page = ahead[0];
#pragma unroll
        for (int i = 1; i < kPagesAhead; ++i) ahead[i - 1] = ahead[i];
        ahead[kPagesAhead - 1] = look_up(a, keys, tile - kPagesAhead);
        if (tile - kPagesAhead == keys.tiles.begin) say_looked_up(rings);
        if constexpr (kOfK) {
          load_boxes<kConfig.head_dim, kOfV>(a, a.k, a.k_page, page, keys, tile, rings.k);
        }
        if constexpr (kOfV) {
          load_boxes<kConfig.value_dim, kOfK>(a, a.v, a.v_page, page, keys, tile, rings.v);
        }
      }
    }
  }

  // Of a tile of k or v, whose pages lie `page_step` rows apart. Who has the first box says how
  // much all of them bring, which the third warp may begin to bring before.
  template <int kColumns, bool kThird>
  static DFA_DEVICE void load_boxes(const Args& a, const TensorMap& map, int page_step, int page,
                                    const PagedKeys& keys, int tile, Ring& ring) {
    constexpr int kPanels = panels(kElement, kColumns);
    const Place place = place_of(a, tile);
    const int left = keys.rows - place.row;
    const bool there =
        left > 0 && static_cast<unsigned>(page) < static_cast<unsigned>(a.args.paged.pages);
    const int rows_of_lane = there ? (left < a.box_rows ? left : a.box_rows) : 0;
    const int end_of_lane =
        there ? page * page_step + static_cast<int>(place.begin) + rows_of_lane : 0;
    ring.wait_empty();
    if (!kThird && ptx::elect()) {
      ptx::arrive_expecting(ring.full(), kPanels * panel_bytes(kBlockK));
    }
    const int first = kThird ? a.third_begin : 0, end = kThird ? a.boxes : a.third_begin;
    unsigned to = ring.tile() + panel_bytes(first * a.box_rows);
#pragma unroll 1
    for (int box = first; box < end; ++box) {
      const int rows = __shfl_sync(ptx::kWholeWarp, rows_of_lane, box);
      const int box_end = __shfl_sync(ptx::kWholeWarp, end_of_lane, box);
      if (ptx::elect()) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          ptx::load_box<true>(to + panel * panel_bytes(kBlockK), map, ring.full(),
                              panel * panel_columns(kElement), kBoxOrigin - rows, keys.head,
                              box_end);
        }
      }
      to += panel_bytes(a.box_rows);
    }
    ring.next();
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_paged_forward(const __grid_constant__ Sm90PagedForwardArgs a) {
  run_sm90_forward<Sm90PagedForward<kConfig>>(a);
}

}  // namespace dfa
