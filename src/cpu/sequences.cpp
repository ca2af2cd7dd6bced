#include "cpu/sequences.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/sinks.h"
#include "spec/bias.h"
#include "spec/descale.h"
#include "spec/lengths.h"
#include "spec/sequences.h"

namespace dfa::cpu {
namespace {

template <typename Pointer>
Pointer* moved(Pointer* base, DType type, const Strides& strides, std::int64_t row) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const char, char>;
  return static_cast<Byte*>(base) + row * strides.row * bytes_of(type);
}

void clear(void* base, DType type, const Strides& strides, std::int64_t first, std::int64_t rows,
           std::int64_t heads, std::int64_t columns) {
  for (std::int64_t row = first; row < first + rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      char* const at =
          static_cast<char*>(base) + (row * strides.row + head * strides.head) * bytes_of(type);
      std::memset(at, 0, static_cast<std::size_t>(columns * bytes_of(type)));
    }
  }
}

// lse of a sequence as a dense problem has it, [hq, rows], in the place of [hq, total_q].
class LseOfSequence {
 public:
  LseOfSequence(const Problem& p, const SequencePlace& place)
      : p_(p), place_(place), rows_(static_cast<std::size_t>(p.hq * place.q_rows)) {}

  float* data() { return rows_.data(); }
  // Of rows that see no key.
  void fill_unseeing(const float* sinks) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i] = sinks != nullptr ? sinks[i / static_cast<std::size_t>(place_.q_rows)]
                                  : -std::numeric_limits<float>::infinity();
    }
  }
  void read(const float* lse) {
    each_head(
        [&](float* own, std::int64_t at, std::size_t bytes) { std::memcpy(own, lse + at, bytes); });
  }
  void write(float* lse) {
    each_head(
        [&](float* own, std::int64_t at, std::size_t bytes) { std::memcpy(lse + at, own, bytes); });
  }

 private:
  template <typename Copy>
  void each_head(const Copy& copy) {
    for (std::int64_t h = 0; h < p_.hq; ++h) {
      copy(rows_.data() + h * place_.q_rows, h * p_.total_q + place_.q_begin,
           static_cast<std::size_t>(place_.q_rows) * sizeof(float));
    }
  }

  const Problem& p_;
  const SequencePlace& place_;
  std::vector<float> rows_;
};

// visit(first, rows): what is of no sequence, between them and at both ends.
template <typename Visit>
void each_gap(const std::vector<SequencePlace>& places, bool of_q, std::int64_t total,
              const Visit& visit) {
  std::int64_t row = 0;
  for (const SequencePlace& place : places) {
    const std::int64_t begin = of_q ? place.q_begin : place.k_begin;
    if (begin > row) visit(row, begin - row);
    row = begin + (of_q ? place.q_rows : place.k_rows);
  }
  if (total > row) visit(row, total - row);
}

// Where the pages of a sequence are named, and its left padding.
Sequences pages_of(const Sequences& all, std::int64_t sequence) {
  return {.block_table = all.block_table + sequence * all.table_row,
          .leftpad_k = all.leftpad_k == nullptr ? nullptr : all.leftpad_k + sequence};
}

// Of rows that see no key: o is 0, but who asks for the gradient of lse gives o and d_o columns
// more.
void add_sinks_alone(const Problem& p, const SequencePlace& place, const BackwardArgs& args,
                     const Logits& logits) {
  LseOfSequence lse(p, place);
  lse.read(args.lse);
  BackwardArgs one = args;
  one.o = moved(args.o, p.o_dtype(), p.o(), place.q_begin);
  one.d_o = moved(args.d_o, p.o_dtype(), p.o(), place.q_begin);
  one.lse = lse.data();
  one.logits = logits;
  add_sink_gradients(sequence_of(p, place.q_rows, place.k_rows), 1, one);
}

}  // namespace

void for_sequences(const Problem& p, const ForwardArgs& args,
                   const std::function<void(const Problem&, const ForwardArgs&)>& run) {
  const std::vector<SequencePlace> places = places_of(p, args.sequences);
  each_gap(places, true, p.total_q, [&](std::int64_t row, std::int64_t rows) {
    clear(args.o, p.o_dtype(), p.o(), row, rows, p.hq, p.dv);
    for (std::int64_t h = 0; args.lse != nullptr && h < p.hq; ++h) {
      std::fill_n(args.lse + h * p.total_q + row, rows, -std::numeric_limits<float>::infinity());
    }
  });
  for (std::size_t i = 0; i < places.size(); ++i) {
    const SequencePlace& place = places[i];
    if (place.q_rows == 0) continue;
    LseOfSequence lse(p, place);
    if (place.k_rows == 0) {
      clear(args.o, p.o_dtype(), p.o(), place.q_begin, place.q_rows, p.hq, p.dv);
      lse.fill_unseeing(p.sink ? args.logits.sinks : nullptr);
    } else {
      ForwardArgs one = args;
      one.q = moved(args.q, p.dtype, p.q(), place.q_begin);
      if (p.paged()) {
        one.sequences = pages_of(args.sequences, static_cast<std::int64_t>(i));
      } else {
        one.k = moved(args.k, p.dtype, p.k(), place.k_begin);
        one.v = moved(args.v, p.dtype, p.v(), place.k_begin);
      }
      one.o = moved(args.o, p.o_dtype(), p.o(), place.q_begin);
      one.lse = args.lse == nullptr ? nullptr : lse.data();
      one.logits = logits_of_sequence(p, args.logits, static_cast<std::int64_t>(i));
      one.descales = of_sequence(args.descales, static_cast<std::int64_t>(i));
      run(sequence_of(p, place.q_rows, place.k_rows), one);
    }
    if (args.lse != nullptr) lse.write(args.lse);
  }
}

void for_sequences(const Problem& p, const BackwardArgs& args,
                   const std::function<void(const Problem&, const BackwardArgs&)>& run) {
  const std::vector<SequencePlace> places = places_of(p, args.sequences);
  each_gap(places, true, p.total_q, [&](std::int64_t row, std::int64_t rows) {
    clear(args.dq, p.dtype, p.q(), row, rows, p.hq, p.d);
  });
  each_gap(places, false, p.total_k, [&](std::int64_t row, std::int64_t rows) {
    clear(args.dk, p.dtype, p.k(), row, rows, p.hk, p.d);
    clear(args.dv, p.dtype, p.v(), row, rows, p.hk, p.dv);
  });
  for (std::size_t i = 0; i < places.size(); ++i) {
    const SequencePlace& place = places[i];
    if (p.sink && place.q_rows > 0 && place.k_rows == 0) {
      add_sinks_alone(p, place, args, args.logits);
    }
    if (place.q_rows == 0 || place.k_rows == 0) {
      clear(args.dq, p.dtype, p.q(), place.q_begin, place.q_rows, p.hq, p.d);
      clear(args.dk, p.dtype, p.k(), place.k_begin, place.k_rows, p.hk, p.d);
      clear(args.dv, p.dtype, p.v(), place.k_begin, place.k_rows, p.hk, p.dv);
      continue;
    }
    LseOfSequence lse(p, place);
    lse.read(args.lse);
    BackwardArgs one = args;
    one.q = moved(args.q, p.dtype, p.q(), place.q_begin);
    one.k = moved(args.k, p.dtype, p.k(), place.k_begin);
    one.v = moved(args.v, p.dtype, p.v(), place.k_begin);
    one.o = moved(args.o, p.o_dtype(), p.o(), place.q_begin);
    one.lse = lse.data();
    one.d_o = moved(args.d_o, p.o_dtype(), p.o(), place.q_begin);
    one.dq = moved(args.dq, p.dtype, p.q(), place.q_begin);
    one.dk = moved(args.dk, p.dtype, p.k(), place.k_begin);
    one.dv = moved(args.dv, p.dtype, p.v(), place.k_begin);
    one.logits = logits_of_sequence(p, args.logits, static_cast<std::int64_t>(i));
    set_bias_gradient(p, static_cast<std::int64_t>(i), one);
    run(sequence_of(p, place.q_rows, place.k_rows), one);
  }
}

}  // namespace dfa::cpu
