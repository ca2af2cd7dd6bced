#include "bench/cudnn_graph.h"

#include <limits>

#include "spec/lengths.h"
#include "spec/passes.h"

namespace dfa::bench {

using namespace cudnn;

namespace {

int element_of(const Problem& p) {
  require_plain(p, "cudnn");
  if (has_backward(p)) throw Unsupported("cudnn: the graph is of a forward; no backward is built");
  if (p.dtype != DType::fp16 && p.dtype != DType::bf16) {
    throw Unsupported(std::string("cudnn: attention takes fp16 and bf16, not ") + name_of(p.dtype));
  }
  if (!(p.mask == kFull) && !(p.mask == kCausal && p.sq == p.sk)) {
    throw Unsupported("cudnn: the graph is of no mask, or causal with sq = sk");
  }
  return p.dtype == DType::fp16 ? kFloat16 : kBfloat16;
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(const CudnnLibrary& library, int type) : library_(library) {
  library_.check(library_.cudnnBackendCreateDescriptor(type, &handle_),
                 "descriptor of type " + std::to_string(type));
}

CudnnDescriptor::~CudnnDescriptor() {
  if (handle_ != nullptr) library_.cudnnBackendDestroyDescriptor(handle_);
}

const CudnnDescriptor& CudnnDescriptor::finalize(const char* what) const {
  library_.check(library_.cudnnBackendFinalize(handle_), what);
  return *this;
}

void CudnnDescriptor::set_all(int name, int type, std::int64_t count, const void* values) const {
  library_.check(library_.cudnnBackendSetAttribute(handle_, name, type, count, values),
                 "attribute " + std::to_string(name));
}

CudnnForward::CudnnForward(const CudnnLibrary& library, Handle handle, const Problem& problem)
    : library_(library), handle_(handle), problem_(problem), element_(element_of(problem)) {
  const Problem& p = problem_;
  q_id_ = next_id_;
  const Tensor q = input(p.q(), p.hq, p.sq, p.d);
  k_id_ = next_id_;
  const Tensor k = input(p.k(), p.hk, p.sk, p.d, true);
  v_id_ = next_id_;
  const Tensor v = input(p.v(), p.hk, p.sk, p.dv);
  o_id_ = next_id_;
  const Tensor o = input(p.o(), p.hq, p.sq, p.dv);
  lse_id_ = next_id_;
  const Tensor lse = tensor(kFloat32, {p.b, p.hq, p.sq, 1}, {p.hq * p.sq, p.sq, 1, 1}, false);

  Tensor scores = between(kFloat32);
  multiply(q, k, scores);
  scores = pointwise(kMultiply, scores, scalar(static_cast<float>(p.softmax_scale())),
                     between(kFloat32));
  if (p.mask == kCausal) scores = hide_later_keys(scores);
  multiply(softmax(scores, lse), v, o);
  make_plan();
}

CudnnForward::Tensor CudnnForward::tensor(int type, const Sizes& sizes, const Sizes& strides,
                                          bool is_virtual, bool by_value) {
  auto made = std::make_shared<const CudnnDescriptor>(library_, kTensor);
  made->set(kTensorType, kOfDataType, type);
  made->set(kTensorSizes, kOfInt64, sizes);
  made->set(kTensorStrides, kOfInt64, strides);
  made->set(kTensorId, kOfInt64, next_id_++);
  made->set(kTensorAlignment, kOfInt64, std::int64_t{16});
  made->set(kTensorVirtual, kOfBoolean, is_virtual);
  if (by_value) made->set(kTensorByValue, kOfBoolean, true);
  made->finalize("tensor");
  kept_.push_back(made);
  return made;
}

CudnnForward::Tensor CudnnForward::between(int type, bool row_values) {
  const Problem& p = problem_;
  const std::int64_t columns = row_values ? 1 : p.sk;
  return tensor(type, {p.b, p.hq, p.sq, columns},
                {p.hq * p.sq * columns, p.sq * columns, columns, 1}, true);
}

CudnnForward::Tensor CudnnForward::input(const Strides& s, std::int64_t heads, std::int64_t rows,
                                         std::int64_t columns, bool transposed) {
  if (transposed) {
    return tensor(element_, {problem_.b, heads, columns, rows}, {s.batch, s.head, 1, s.row}, false);
  }
  return tensor(element_, {problem_.b, heads, rows, columns}, {s.batch, s.head, s.row, 1}, false);
}

CudnnForward::Tensor CudnnForward::scalar(float value) {
  scalars_.emplace_back(next_id_, std::make_unique<float>(value));
  return tensor(kFloat32, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

CudnnForward::Tensor CudnnForward::pointwise(int mode, const Tensor& x, const Tensor& b, Tensor y,
                                             const Tensor& t, int precision, std::int64_t axis) {
  CudnnDescriptor what(library_, kPointwise);
  what.set(kPointwiseMode, kOfPointwiseMode, mode);
  what.set(kPointwisePrecision, kOfDataType, precision);
  if (axis >= 0) what.set(kPointwiseAxis, kOfInt64, axis);
  what.finalize("pointwise");
  auto operation = std::make_unique<CudnnDescriptor>(library_, kPointwiseOperation);
  operation->set(kPointwiseOf, what);
  operation->set(kPointwiseX, *x);
  if (b != nullptr) operation->set(kPointwiseB, *b);
  if (t != nullptr) operation->set(kPointwiseT, *t);
  operation->set(kPointwiseY, *y);
  operation->finalize("pointwise operation");
  operations_.push_back(std::move(operation));
  return y;
}

CudnnForward::Tensor CudnnForward::reduce(int mode, const Tensor& x) {
  CudnnDescriptor what(library_, kReduction);
  what.set(kReductionMode, kOfReductionMode, mode);
  what.set(kReductionPrecision, kOfDataType, kFloat32);
  what.finalize("reduction");
  Tensor y = between(kFloat32, true);
  auto operation = std::make_unique<CudnnDescriptor>(library_, kReductionOperation);
  operation->set(kReductionOf, what);
  operation->set(kReductionX, *x);
  operation->set(kReductionY, *y);
  operation->finalize("reduction operation");
  operations_.push_back(std::move(operation));
  return y;
}

void CudnnForward::multiply(const Tensor& a, const Tensor& b, const Tensor& c) {
  CudnnDescriptor what(library_, kMatmul);
  what.set(kMatmulPrecision, kOfDataType, kFloat32);
  what.finalize("product");
  auto operation = std::make_unique<CudnnDescriptor>(library_, kMatmulOperation);
  operation->set(kMatmulOf, what);
  operation->set(kMatmulA, *a);
  operation->set(kMatmulB, *b);
  operation->set(kMatmulC, *c);
  operation->finalize("product operation");
  operations_.push_back(std::move(operation));
}

CudnnForward::Tensor CudnnForward::hide_later_keys(const Tensor& scores) {
  const Tensor query = pointwise(kIndex, scores, nullptr, between(kInt32), nullptr, kInt32, 2);
  const Tensor key = pointwise(kIndex, scores, nullptr, between(kInt32), nullptr, kInt32, 3);
  const Tensor seen = pointwise(kGreaterEqual, query, key, between(kBoolean), nullptr, kBoolean);
  const Tensor hidden = scalar(-std::numeric_limits<float>::infinity());
  return pointwise(kSelect, scores, hidden, between(kFloat32), seen);
}

CudnnForward::Tensor CudnnForward::softmax(const Tensor& scores, const Tensor& lse) {
  const Tensor most = reduce(kReduceMax, scores);
  const Tensor below = pointwise(kSubtract, scores, most, between(kFloat32));
  const Tensor weights = pointwise(kExp, below, nullptr, between(kFloat32));
  const Tensor sum = reduce(kReduceAdd, weights);
  const Tensor logarithm = pointwise(kLog, sum, nullptr, between(kFloat32, true));
  pointwise(kAdd, most, logarithm, lse);
  return pointwise(kDivide, weights, sum, between(element_));
}

// The first engine that takes the graph, as cuDNN ranks them.
void CudnnForward::make_plan() {
  graph_ = std::make_unique<CudnnDescriptor>(library_, kOperationGraph);
  std::vector<Descriptor> operations;
  for (const auto& operation : operations_) operations.push_back(operation->handle());
  graph_->set(kGraphOperations, kOfDescriptor, operations);
  graph_->set(kGraphHandle, kOfHandle, handle_);
  graph_->finalize("graph");

  CudnnDescriptor heuristic(library_, kEngineHeuristic);
  heuristic.set(kHeuristicGraph, *graph_);
  heuristic.set(kHeuristicMode, kOfHeuristic, kHeuristicA);
  heuristic.finalize("heuristic");
  constexpr std::int64_t kMost = 8;
  std::vector<CudnnDescriptor> configs;
  std::vector<Descriptor> handles;
  handles.reserve(kMost);
  for (int i = 0; i < kMost; ++i) {
    handles.push_back(configs.emplace_back(library_, kEngineConfig).handle());
  }
  std::int64_t count = 0;
  library_.check(library_.cudnnBackendGetAttribute(heuristic.handle(), kHeuristicResults,
                                                   kOfDescriptor, kMost, &count, handles.data()),
                 "engines for the graph");
  std::string reason = "no engine for the graph";
  for (std::int64_t i = 0; i < count && plan_ == nullptr; ++i) {
    auto plan = std::make_unique<CudnnDescriptor>(library_, kExecutionPlan);
    plan->set(kPlanHandle, kOfHandle, handle_);
    plan->set(kPlanConfig, configs[static_cast<std::size_t>(i)]);
    try {
      plan->finalize("plan");
      plan_ = std::move(plan);
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  if (plan_ == nullptr) throw Unsupported("cudnn: " + reason);
  std::int64_t bytes = 0;
  library_.check(library_.cudnnBackendGetAttribute(plan_->handle(), kPlanWorkspace, kOfInt64, 1,
                                                   &count, &bytes),
                 "bytes of workspace");
  workspace_bytes_ = static_cast<std::size_t>(bytes);
}

void CudnnForward::run(const ForwardArgs& args) const {
  std::vector<std::int64_t> ids{q_id_, k_id_, v_id_, o_id_, lse_id_};
  std::vector<void*> pointers{const_cast<void*>(args.q), const_cast<void*>(args.k),
                              const_cast<void*>(args.v), args.o, args.lse};
  for (const auto& [id, value] : scalars_) {
    ids.push_back(id);
    pointers.push_back(value.get());
  }
  const CudnnDescriptor pack(library_, kVariantPack);
  pack.set(kPackIds, kOfInt64, ids);
  pack.set(kPackPointers, kOfPointer, pointers);
  pack.set(kPackWorkspace, kOfPointer, args.workspace);
  pack.finalize("pointers");
  library_.check(library_.cudnnBackendExecute(handle_, plan_->handle(), pack.handle()), "run");
}

}  // namespace dfa::bench
