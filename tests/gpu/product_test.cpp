#include "gpu/product.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/element.h"
#include "gpu/buffer.h"
#include "gpu/cublaslt_library.h"
#include "gpu/fake_cublaslt.h"
#include "gpu/fake_cuda_test_case.h"
#include "temp_dir.h"

namespace dfa::gpu {
namespace {

class ProductTest : public testing::FakeCudaTest {
 protected:
  static testing::FakeCublasLt& products() {
    static const std::string name = DFA_FAKE_CUBLASLT;
    static const SharedLibrary library = SharedLibrary::open_first(std::span(&name, 1));
    return *reinterpret_cast<testing::FakeCublasLt* (*)()>(library.symbol("fake_cublaslt"))();
  }

  // Before the process asks for its library the first time.
  ProductTest() {
    ::setenv("DFA_CUBLASLT", DFA_FAKE_CUBLASLT, 1);
    const int handles = products().handles;
    products() = {};
    products().handles = handles;
  }

  void TearDown() override {
    EXPECT_EQ(products().descriptors, 0);
    FakeCudaTest::TearDown();
  }
};

// Small integers, different everywhere, in memory that is larger than the matrices.
std::vector<std::uint32_t> filled(const Matrices& m, std::int64_t batch, int seed) {
  const std::int64_t count = batch * (m.stride + m.rows * m.row_stride) + m.cols;
  std::vector<std::uint32_t> memory(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(memory.data(), m.type, i, static_cast<float>((i * 7 + seed) % 11 - 5));
  }
  return memory;
}

float element(const Matrices& m, const void* data, std::int64_t n, std::int64_t row,
              std::int64_t col) {
  if (m.transposed) std::swap(row, col);
  return load_element(data, m.type, n * m.stride + row * m.row_stride + col);
}

void expect_right(const ProductShape& shape, float alpha) {
  const Device& device = Device::get(0);
  const Stream stream(device);
  const auto left = filled(shape.left, shape.batch, 3), right = filled(shape.right, shape.batch, 5);
  auto out = filled(shape.out, shape.batch, 1);
  const auto before = out;
  Product(device, shape, 4096).queue(stream, alpha, left.data(), right.data(), out.data(), nullptr);
  const std::int64_t inner = shape.left.transposed ? shape.left.rows : shape.left.cols;
  auto expected = before;
  for (std::int64_t n = 0; n < shape.batch; ++n) {
    for (std::int64_t i = 0; i < shape.out.rows; ++i) {
      for (std::int64_t j = 0; j < shape.out.cols; ++j) {
        float sum = 0;
        for (std::int64_t k = 0; k < inner; ++k) {
          sum += element(shape.left, left.data(), n, i, k) *
                 element(shape.right, right.data(), n, k, j);
        }
        store_element(expected.data(), shape.out.type,
                      n * shape.out.stride + i * shape.out.row_stride + j, alpha * sum);
      }
    }
  }
  EXPECT_EQ(out, expected) << to_text(shape);  // and nothing between the matrices was touched
}

TEST_F(ProductTest, ItsLibraryIsThere) {
  EXPECT_TRUE(products_available());
  EXPECT_EQ(products_version(), std::string("cublasLt 13.1.2, ") + DFA_FAKE_CUBLASLT);
}

// S = q k^T, o = P v, dv = P^T do: with gaps between rows and matrices.
TEST_F(ProductTest, MatricesOfOursAreTheLibrarysTransposed) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
    const Matrices q{type, 5, 8, 11, 60}, k{type, 3, 8, 8, 24, true}, s{DType::fp32, 5, 3, 4, 32};
    expect_right({q, k, s, 2}, 0.5f);
    const Matrices p{type, 5, 3, 8, 47}, v{type, 3, 8, 9, 28}, o{type, 5, 8, 8, 40};
    expect_right({p, v, o, 3}, 1.f);
    const Matrices p_t{type, 5, 3, 8, 47, true}, d_o{type, 5, 8, 8, 40}, dv{type, 3, 8, 10, 31};
    expect_right({p_t, d_o, dv, 3}, 2.f);
    EXPECT_EQ(products().compute, lt::kCompute32);
  }
}

TEST_F(ProductTest, OnlyTf32IsCalculatedInTf32) {
  const Matrices a{DType::tf32, 4, 8, 8, 32}, b{DType::tf32, 8, 4, 4, 32};
  expect_right({a, b, {DType::fp32, 4, 4, 4, 16}, 2}, 1.f);
  EXPECT_EQ(products().compute, lt::kComputeTf32);
}

TEST_F(ProductTest, WorkspaceAlignmentAndStreamAreTheCallers) {
  const Device& device = Device::get(0);
  const Stream stream(device);
  const Buffer space(device, 512);
  const Matrices one{DType::fp32, 4, 4, 4};
  std::vector<float> memory(16, 1.f), out(16);
  const Product product(device, {one, one, one, 1}, 512);
  EXPECT_EQ(products().max_workspace_bytes, 512u);
  EXPECT_EQ(products().alignments, std::vector<std::uint32_t>(4, kProductAlignment));
  product.queue(stream, 1.f, memory.data(), memory.data(), out.data(), space.data());
  EXPECT_EQ(products().workspace, space.data());
  EXPECT_EQ(products().workspace_bytes, 512u);
  EXPECT_EQ(products().stream, stream.handle());
  EXPECT_EQ(products().handles, 1);
}

TEST_F(ProductTest, ARefusalNamesTheProduct) {
  const Device& device = Device::get(0);
  const Matrices a{DType::bf16, 5, 8, 8, 40}, b{DType::bf16, 3, 8, 8, 24, true};
  const ProductShape shape{a, b, {DType::fp32, 5, 3, 4, 20}, 7};
  products().has_kernels = false;
  try {
    Product(device, shape, 0);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_STREQ(error.what(), "cublasLt: no kernel for bf16 7x [5x8] [3x8]^T -> fp32");
  }
  products().has_kernels = true;
  const Product product(device, shape, 0);
  std::vector<float> memory(1000);
  const auto run = [&] {
    product.queue(Stream(device), 1.f, memory.data(), memory.data(), memory.data(), nullptr);
  };
  products().matmul_status = lt::kNotSupported;
  EXPECT_THROW(run(), Unsupported);
  products().matmul_status = lt::kAllocFailed;
  EXPECT_THROW(run(), OutOfMemory);
  products().matmul_status = 13;
  EXPECT_THROW(run(), Error);
  EXPECT_THROW(Product(device, {{.type = DType::e4m3}, {.type = DType::e4m3}, {}, 1}, 0),
               Unsupported);
}

TEST_F(ProductTest, NoLibraryIsAReasonThatNamesItAndSaysWhereThereIsOne) {
  const CublasLtLibrary none({"libdfa_is_not_there.so.1"});
  EXPECT_FALSE(none.status);
  for (const char* part : {"libdfa_is_not_there.so.1", "DFA_CUBLASLT", "nvidia-cublas"}) {
    EXPECT_NE(none.status.reason.find(part), std::string::npos) << none.status.reason;
  }
}

// Every function by turns, its name spoiled in a copy of the file.
TEST_F(ProductTest, AMissingFunctionIsNamed) {
  std::ifstream in(DFA_FAKE_CUBLASLT, std::ios::binary);
  const std::string library(std::istreambuf_iterator<char>(in), {});
  const testing::TempDir folder;
  for (const std::string name : {"cublasLtCreate", "cublasLtMatmul", "cublasLtMatrixLayoutCreate",
                                 "cublasLtMatmulAlgoGetHeuristic", "cublasLtGetVersion"}) {
    std::string spoiled = library;
    for (std::size_t at = 0; (at = spoiled.find(name + '\0', at)) != std::string::npos;) {
      spoiled[at + name.size() - 1] = '_';
    }
    const std::string path = folder.write(name + ".so", spoiled).string();
    const CublasLtLibrary opened({path});
    EXPECT_EQ(opened.status.reason, "'" + path + "' lacks " + name);
  }
}

}  // namespace
}  // namespace dfa::gpu
