// Optimizer state and gradients that ranks share (zero.hpp, gradient_shards.hpp).
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/train/gradient_shards.hpp"
#include "trainer/train/gradients.hpp"

using namespace dtrain::train;
using test::holds;
using test::launch;
using test::read_file;
using test::TemporaryFolder;

TEST_CASE("ZeRO trains bit for bit as each optimizer alone does") {
  holds("zero_equal", 3, {"shared_memory", "gloo"});
  holds("zero_equal", 2, {"shared_memory"});
}

TEST_CASE("ZeRO adds up gradients that nobody has zeroed") {
  holds("zero_accumulates", 2, {"shared_memory", "gloo"});
}

TEST_CASE("ZeRO goes on with ranks that have no more batches") {
  holds("zero_join", 3, {"shared_memory", "gloo"});
}

TEST_CASE("ZeRO's calls are in line with those of a communication thread") {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> beside{{"DTRAIN_TRANSPORT", "shared_memory"},
                                                  {"TEST_COMMUNICATION_THREAD", "1"}};
  holds("zero_beside", 3, folder.path(), beside);
}

TEST_CASE("ZeRO trains a model with a parameter without elements") {
  holds("zero_empty", 3, {"shared_memory", "gloo"});
}

TEST_CASE("ZeRO refuses what cannot be right") {
  holds("zero_refuses", 2, {"shared_memory"});
}

TEST_CASE("a checkpoint of ZeRO goes on with other ranks, another stage, and without it") {
  const TemporaryFolder folder;
  holds("zero_checkpoint", 3, folder.path(), {{"TEST_ZERO", "1"}});
  holds("zero_checkpoint", 2, folder.path(), {{"TEST_ZERO", "2"}});
  holds("zero_checkpoint", 1, folder.path(), {});
}

TEST_CASE("ZeRO-2 keeps the buckets that backward works on, not all") {
  holds("zero2_memory", 2, {"shared_memory", "gloo"});
}

TEST_CASE("ZeRO-2 keeps nothing of the steps that a rank without batches follows") {
  holds("zero2_join_memory", 2, {"shared_memory", "gloo"});
}

TEST_CASE("a plan gives every element to one rank, and all of them as much") {
  const auto named = [](const std::vector<std::vector<std::int64_t>>& shapes) {
    std::vector<NamedParameter> parameters;
    for (const auto& shape : shapes) {
      parameters.push_back({"p" + std::to_string(parameters.size()), at::zeros(shape)});
    }
    return parameters;
  };
  const auto parameters = named({{700, 1001}, {700}, {5}, {64, 64, 3, 3}, {}, {2000, 10}});
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const ShardPlan plan(parameters, ranks, /*cuts=*/true);
    std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      std::vector<int> owners(static_cast<std::size_t>(parameters[i].tensor.numel()));
      for (std::size_t r = 0; r < load.size(); ++r) {
        const ElementRange& piece = plan.pieces[i][r];
        CHECK(piece.begin % kNormBlock == 0);
        load[r] += piece.length;
        for (std::int64_t e = 0; e < piece.length; ++e) {
          ++owners[static_cast<std::size_t>(piece.begin + e)];
        }
      }
      CHECK(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }));
      CHECK(plan.pieces[i][static_cast<std::size_t>(plan.first[i])].begin == 0);
    }
    const auto [least, most] = std::minmax_element(load.begin(), load.end());
    CHECK(*most - *least <= 3 * kNormBlock);
    const ShardPlan uncut(parameters, ranks, /*cuts=*/false);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      CHECK(!uncut.is_cut(i, parameters[i].tensor.numel()));
    }
  }
}

TEST_CASE("a norm has the same bits in parts") {
  at::manual_seed(4);
  const at::Tensor whole = at::randn({100, 1001}) * 1e-3;
  const std::vector<double> all = gradient_squares(whole);
  std::vector<double> parts = gradient_squares(elements_of(whole, {0, 7 * kNormBlock}));
  const std::vector<double> rest =
      gradient_squares(elements_of(whole, {7 * kNormBlock, whole.numel() - 7 * kNormBlock}));
  parts.insert(parts.end(), rest.begin(), rest.end());
  CHECK(parts == all);
  double sum = 0;
  for (const double each : all) sum += each;
  CHECK(std::sqrt(sum) == doctest::Approx(whole.to(at::kDouble).norm().item<double>()));
}
