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
      load_boxes<kConfig.head_dim>(a, a.k, a.k_page, work, tile, slot(rings, tile), rings.k);
    }
    // Later than k of the tile before this one, which is still in its slot.
    static DFA_DEVICE void load_v(const Args& a, const WorkTile& work, int tile, Rings& rings) {
      load_boxes<kConfig.value_dim>(a, a.v, a.v_page, work, tile, slot(rings, tile), rings.v);
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
