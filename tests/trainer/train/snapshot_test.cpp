#include "trainer/train/snapshot.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstring>

using namespace dtrain::train;

namespace {

const TensorSource& source(const Snapshot& snapshot, const std::string& file,
                           const std::string& name) {
  for (const TensorSource& item : snapshot.sources().at(file)) {
    if (item.name == name) return item;
  }
  throw std::runtime_error("no " + name);
}

}  // namespace

TEST_CASE("a snapshot holds what was there when it was taken") {
  at::Tensor large = at::arange(3'000'000, at::kInt);  // more than one piece
  at::Tensor transposed = at::arange(6, at::kDouble).view({2, 3}).t();
  const TensorFiles files{
      {"a", {{"large", large}, {"empty", at::empty({0, 2})}}},
      {"b", {{"transposed", transposed}, {"scalar", at::scalar_tensor(7, at::kLong)}}}};
  Snapshot snapshot;
  snapshot.reserve(files);
  snapshot.take(files);
  const at::Tensor before = large.clone();
  large.zero_();
  const TensorSource& copy = source(snapshot, "a", "large");
  CHECK(copy.dtype == DType::i32);
  REQUIRE(copy.bytes.size() == before.nbytes());
  CHECK(std::memcmp(copy.bytes.data(), before.const_data_ptr(), before.nbytes()) == 0);
  CHECK(source(snapshot, "a", "empty").bytes.empty());
  CHECK(source(snapshot, "b", "transposed").shape == std::vector<std::int64_t>{3, 2});
  const at::Tensor flat = transposed.contiguous();
  CHECK(std::memcmp(source(snapshot, "b", "transposed").bytes.data(), flat.const_data_ptr(),
                    flat.nbytes()) == 0);
  CHECK(snapshot.bytes() >= before.nbytes() + flat.nbytes() + 8);

  // Taken again, and of more than was reserved.
  snapshot.take({{"c", {{"more", at::ones({4'000'000})}}}});
  CHECK(snapshot.sources().size() == 1);
  float last = 0;
  std::memcpy(&last, source(snapshot, "c", "more").bytes.last(4).data(), 4);
  CHECK(last == 1);
}

TEST_CASE("ranks share the writing: everything once, the whole file with rank 0, evenly") {
  TensorFiles files;
  for (int i = 0; i < 9; ++i) files["model"].emplace("p" + std::to_string(i), at::zeros({100 + i}));
  for (const char* key : {"m", "v"}) {
    for (int i = 0; i < 9; ++i) {
      files["optimizer"].emplace("p" + std::to_string(i) + "/" + key, at::zeros({100 + i}));
    }
  }
  std::map<std::string, std::size_t> seen;
  std::vector<std::size_t> bytes;
  for (int rank = 0; rank < 3; ++rank) {
    const TensorFiles share = share_of_rank(files, "model", rank, 3);
    CHECK(share.contains("model") == (rank == 0));
    CHECK(share.contains("optimizer"));
    std::size_t total = 0;
    for (const auto& [file, tensors] : share) {
      for (const auto& [name, tensor] : tensors) {
        CHECK(tensor.is_same(files.at(file).at(name)));
        ++seen[file + ":" + name];
        total += tensor.nbytes();
      }
    }
    bytes.push_back(total);
  }
  CHECK(seen.size() == 27);
  for (const auto& [name, times] : seen) CHECK(times == 1);
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  CHECK(*most - *least <= 440);  // less than one tensor
}
