#pragma once

#include "kernels/forward/sm90_forward.cuh"
#include "kernels/forward/sm90_paged_args.h"

// Hopper's forward over keys in pages: sm90_forward of packed sequences, whose producer copies a
// tile of keys in boxes of rows that lie in one page.
//
// A box has rows in a multiple of eight, so that boxes side by side leave the tile's swizzle. Each
// counts rows back from the end of its own sequence, as boxes of packed keys do, so that what a
// page has behind it, NaN perhaps, reads as zeros; so does a box behind the end, or of an entry
// that is no page of the cache. Which pages a tile has is copied from the block table to shared
// memory, kPagesAhead tiles ahead: the thread has registers for few, and waits for none.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90PagedForward : Sm90Forward<kConfig> {
  using Base = Sm90Forward<kConfig>;
  using Base::kBlockK, Base::kElement, Base::kPagesAt;
  using typename Base::Ring, typename Base::Rings, typename Base::WorkTile;
  using Args = Sm90PagedForwardArgs;
  static_assert(kConfig.varlen && kConfig.paged && !Base::kPaired);
  static_assert((kPageSlots & (kPageSlots - 1)) == 0 && kPageSlots >= kPagesAhead + 2);

  static DFA_DEVICE void copy(const Args& a, Rings rings) {
    Base::template copy_all<KeysInPages>(a, rings);
  }

  struct KeysInPages {
    static DFA_DEVICE void start(const Args& a, const WorkTile& work, const TileRange& tiles,
                                 const Rings& rings) {
#pragma unroll
      for (int i = 1; i <= kPagesAhead; ++i) look_up(a, work, tiles.end - i, rings);
    }
    static DFA_DEVICE void load_k(const Args& a, const WorkTile& work, int tile, Rings& rings) {
      look_up(a, work, tile - kPagesAhead, rings);
      ptx::wait_copies<kPagesAhead>();
      load<kConfig.head_dim>(a, {a.k, a.whole_k, a.k_page, a.k_head}, work, tile, slot(rings, tile),
                             rings.k);
    }
    // Later than k of the tile before this one, which is still in its slot.
    static DFA_DEVICE void load_v(const Args& a, const WorkTile& work, int tile, Rings& rings) {
      load<kConfig.value_dim>(a, {a.v, a.whole_v, a.v_page, a.v_head}, work, tile,
                              slot(rings, tile), rings.v);
    }
  };

 private:
  static DFA_DEVICE unsigned slot(const Rings& rings, int tile) {
    return rings.smem + kPagesAt + (tile & (kPageSlots - 1)) * kConfig.page_slot_bytes();
  }

  // Starts copies of the tile's entries of the table; those behind the end there may be no columns
  // for. A group of copies a tile, also where there is no such tile.
  static DFA_DEVICE void look_up(const Args& a, const WorkTile& work, int tile,
                                 const Rings& rings) {
    if (tile >= 0) {
      const PagedArgs& pages = a.args.paged;
      const int first = tile * kBlockK, all = work.seq.k_rows;
      const int end = first + kBlockK < all ? first + kBlockK : all;
      const unsigned column = static_cast<unsigned>(first) / static_cast<unsigned>(pages.page);
      int row = static_cast<int>(column) * pages.page;
      const int* entry = pages.block_table + work.seq.batch * pages.table_row + column;
      unsigned to = slot(rings, tile);
      ptx::store_shared(to, static_cast<unsigned>(first - row));
#pragma unroll 1
      for (; row < end; row += pages.page) ptx::copy_4(to += 4, entry++);
    }
    ptx::commit_copies();
  }

  // Of k or v, see Sm90PagedForwardArgs.
  struct Pages {
    const TensorMap &map, &whole;
    int step, head;
  };
  template <int kColumns>
  static DFA_DEVICE void load(const Args& a, const Pages& pages, const WorkTile& work, int tile,
                              unsigned slot, Ring& ring) {
    if constexpr (kConfig.interleaved) {
      load_interleaved<kColumns>(a, pages, work, tile, slot, ring);
    } else {
      load_boxes<kColumns>(a, pages.map, pages.step, work, tile, slot, ring);
    }
  }

  // An interleaved tile: a page's rows at once where all of them are the sequence's, or none, else
  // eight at a time.
  template <int kColumns>
  static DFA_DEVICE void load_interleaved(const Args& a, const Pages& pages, const WorkTile& work,
                                          int tile, unsigned slot, Ring& ring) {
    constexpr int kEightRows = panels(kElement, kColumns) * kEightRowBytes;
    constexpr int kOutside = -256;  // in eights of rows; no box is as long
    ring.wait_empty();
    ptx::arrive_expecting(ring.full(), kBlockK / 8 * kEightRows);
    int left = work.seq.k_rows - tile * kBlockK;
    int at = static_cast<int>(ptx::load_shared(slot));
    const int panel = work.kv_head * pages.head;
    unsigned to = ring.tile();
    const unsigned end = to + kBlockK / 8 * kEightRows;
#pragma unroll 1
    while (to < end) {
      const unsigned page = ptx::load_shared(slot + 4);
      const bool there = left > 0 && page < static_cast<unsigned>(a.args.paged.pages);
      const int row = there ? static_cast<int>(page) * pages.step + at : kOutside * 8;
      int rows = there ? left : a.box_rows;
      if (rows >= a.box_rows) {
        ptx::load_box(to, pages.whole, ring.full(), 0, 0, panel, row / 8);
        to += static_cast<unsigned>(a.box_rows / 8) * kEightRows;
      } else {
        const unsigned box_end = to + static_cast<unsigned>(a.box_rows / 8) * kEightRows;
        const int behind = row + rows;  // the sequence's last row
#pragma unroll 1
        for (; to < box_end; to += kEightRows, rows -= 8) {
          const int here = rows < 8 ? rows : 8;
          const bool any = here > 0;
          ptx::load_box<true>(to, pages.map, ring.full(), 0, kBoxOrigin - (any ? here : 0), panel,
                              any ? behind - rows + here : 0);
        }
      }
      left -= a.box_rows;
      at += a.box_rows;
      if (at == a.args.paged.page) {
        at = 0;
        slot += 4;
      }
    }
    ring.next();
  }

  // A tile of k or v, whose pages lie `page_step` rows apart.
  template <int kColumns>
  static DFA_DEVICE void load_boxes(const Args& a, const TensorMap& map, int page_step,
                                    const WorkTile& work, int tile, unsigned slot, Ring& ring) {
    constexpr int kPanels = panels(kElement, kColumns);
    ring.wait_empty();
    ptx::arrive_expecting(ring.full(), kPanels * panel_bytes(kBlockK));
    int left = work.seq.k_rows - tile * kBlockK;
    int at = static_cast<int>(ptx::load_shared(slot));
    const unsigned begin = ring.tile(), end = begin + panel_bytes(kBlockK);
#pragma unroll 1
    for (unsigned to = begin; to < end; to += panel_bytes(a.box_rows)) {
      const unsigned page = ptx::load_shared(slot + 4);
      const bool there = left > 0 && page < static_cast<unsigned>(a.args.paged.pages);
      const int rows = there ? (left < a.box_rows ? left : a.box_rows) : 0;
      const int box_end = there ? static_cast<int>(page) * page_step + at + rows : 0;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::load_box<true>(to + panel * panel_bytes(kBlockK), map, ring.full(),
                            panel * panel_columns(kElement), kBoxOrigin - rows, work.kv_head,
                            box_end);
      }
      left -= a.box_rows;
      at += a.box_rows;
      if (at == a.args.paged.page) {
        at = 0;
        slot += 4;
      }
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
