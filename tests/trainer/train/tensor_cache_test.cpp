#include "trainer/train/tensor_cache.hpp"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>

#include <thread>
#include <vector>

using namespace dtrain::train;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

at::Tensor bytes(std::int64_t count) {
  return at::full({count}, 7, at::kByte);
}

}  // namespace

TEST_CASE("tensor cache: memory of tensors that are gone serves the next ones") {
  install_tensor_cache();
  const auto step = [] {
    const at::Tensor a = bytes(3 * kMiB);
    const at::Tensor b = bytes(5 * kMiB + 1);
    return (a.sum() + b.sum()).item<std::int64_t>();
  };
  const std::int64_t first = step();
  const TensorCacheUse before = tensor_cache_use();
  CHECK(before.kept >= std::size_t{8} << 20);
  for (int i = 0; i < 10; ++i) CHECK(step() == first);
  const TensorCacheUse after = tensor_cache_use();
  CHECK(after.mapped == before.mapped);
  CHECK(after.in_use == before.in_use);
  CHECK(after.kept == before.kept);
}

TEST_CASE("tensor cache: what is kept is bounded by what was in use") {
  install_tensor_cache();
  std::size_t most = 0;
  {
    // More than any test before it in this process; none of it is touched.
    const at::Tensor more_than_before = at::empty({1024 * kMiB}, at::kByte);
    most = tensor_cache_use().in_use;
  }
  for (std::int64_t size = 1; size < 200; ++size) {  // never the same size again
    const at::Tensor tensor = bytes(size * kMiB / 2);
    const TensorCacheUse use = tensor_cache_use();
    most = std::max(most, use.in_use);
    CHECK(use.in_use + use.kept <= most + most / 2);
  }
}

TEST_CASE("tensor cache: what is kept goes when it is told to") {
  install_tensor_cache();
  { const at::Tensor large = bytes(9 * kMiB); }
  REQUIRE(tensor_cache_use().kept >= std::size_t{9} << 20);
  trim_tensor_cache();
  CHECK(tensor_cache_use().kept == 0);
  CHECK(bytes(9 * kMiB).sum().item<std::int64_t>() == 63 * kMiB);
}

TEST_CASE("tensor cache: small, empty and shifted tensors, and addresses") {
  install_tensor_cache();
  for (const std::int64_t size : {0L, 1L, 63L, 4096L, 128L << 10, 131008L, 131009L, 5 * kMiB}) {
    CAPTURE(size);
    const at::Tensor tensor = at::arange(size, at::kInt).to(at::kByte);
    CHECK(tensor.numel() == size);
    if (size > 0) {
      CHECK(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 == 0);
      CHECK(tensor[size - 1].item<std::uint8_t>() == static_cast<std::uint8_t>(size - 1));
    }
    at::Tensor grown = tensor.clone();
    grown.resize_({size * 2 + 10});
    CHECK(at::equal(grown.slice(0, 0, size), tensor));
  }
  // As oneDNN asks for memory.
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  void* const raw = allocator->raw_allocate(kMiB);
  REQUIRE(raw != nullptr);
  const TensorCacheUse with = tensor_cache_use();
  allocator->raw_deallocate(raw);
  CHECK(tensor_cache_use().in_use < with.in_use);
}

TEST_CASE("tensor cache: threads share it") {
  install_tensor_cache();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &wrong] {
      at::Tensor passed;
      for (int i = 1; i < 200; ++i) {
        const at::Tensor mine = at::full({(i % 7 + 1) * kMiB / 4}, t, at::kByte);
        if (mine.max().item<int>() != t || mine.min().item<int>() != t) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) CHECK(count == 0);
}

TEST_CASE("tensor cache: too much is an error that leaves it usable") {
  install_tensor_cache();
  const TensorCacheUse before = tensor_cache_use();
  CHECK_THROWS_AS(at::empty({std::int64_t{1} << 60}, at::kByte), c10::Error);
  CHECK(tensor_cache_use().in_use == before.in_use);
  CHECK(bytes(kMiB).sum().item<std::int64_t>() == 7 * kMiB);
}
