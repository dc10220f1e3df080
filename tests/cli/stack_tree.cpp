#include "cli/stack_tree.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace dtrain::cli;

TEST_CASE("what ranks have in common stands once, and branches name their ranks") {
  std::vector<RankStack> stacks;
  for (const int rank : {0, 1, 2, 4, 5, 6, 7}) {
    stacks.push_back({rank, {"main", "train", "backward", "all_reduce", "wait"}});
  }
  stacks.push_back({3, {"main", "train", "next_batch", "read"}});
  CHECK(stack_tree(stacks) ==
        "ranks 0-7:\n"
        "  main\n"
        "  train\n"
        "    ranks 0-2, 4-7:\n"
        "      backward\n"
        "      all_reduce\n"
        "      wait\n"
        "    rank 3:\n"
        "      next_batch\n"
        "      read\n");
}

TEST_CASE("one that ends where others go on, and ones with nothing in common") {
  CHECK(stack_tree({{0, {"main", "work"}}, {1, {"main"}}, {2, {"start"}}}) ==
        "ranks 0-1:\n"
        "  main\n"
        "    rank 0:\n"
        "      work\n"
        "rank 2:\n"
        "  start\n");
  CHECK(stack_tree({}) == "");
}

TEST_CASE("frames of which nothing is known are counted") {
  CHECK(stack_tree({{0, {"main", "? (sh)", "? (sh)", "? (sh)", "wait"}}}) ==
        "rank 0:\n"
        "  main\n"
        "  ? (sh), 3 times\n"
        "  wait\n");
}

TEST_CASE("ten thousand ranks, half of them somewhere else") {
  std::vector<RankStack> stacks;
  for (int rank = 0; rank < 10000; ++rank) {
    stacks.push_back({rank, {"main", "train", rank < 5000 ? "forward" : "backward"}});
  }
  CHECK(stack_tree(stacks) ==
        "ranks 0-9999:\n"
        "  main\n"
        "  train\n"
        "    ranks 0-4999:\n"
        "      forward\n"
        "    ranks 5000-9999:\n"
        "      backward\n");
}

TEST_CASE("a function's name without what makes it long") {
  CHECK(short_function("main") == "main");
  CHECK(short_function("dtrain::train::Adam::step()") == "dtrain::train::Adam::step");
  CHECK(short_function("(anonymous namespace)::train(Flags const&)") ==
        "(anonymous namespace)::train");
  CHECK(
      short_function(
          "std::_Function_handler<int (), main::{lambda()#1}>::_M_invoke(std::_Any_data const&)") ==
      "std::_Function_handler<…>::_M_invoke");
  CHECK(short_function(
            "bool std::wait<std::unique_lock<std::mutex>, f(std::stop_token)::{lambda()#1}>("
            "std::mutex&, f(std::stop_token)::{lambda()#1})") == "std::wait<…>");
  CHECK(short_function("run(int)::{lambda(int)#2}::operator()(int) const") ==
        "run(int)::{lambda(int)#2}::operator()(int) const");
  CHECK(short_function("f(int) const::helper(int)") == "f");
  CHECK(short_function("at::native::(anonymous namespace)::adam<float>(at::Tensor const&)") ==
        "at::native::(anonymous namespace)::adam<…>");
  CHECK(short_function("broken<") == "broken<");
  CHECK(short_function("PyEval_EvalCode") == "PyEval_EvalCode");
}

TEST_CASE("a frame in words") {
  CHECK(frame_in_words({{"function", "step(int)"},
                        {"library", "train"},
                        {"file", "/src/adam.cpp"},
                        {"line", 31}}) == "step (train, adam.cpp:31)");
  CHECK(frame_in_words({{"library", "sh"}}) == "? (sh)");
  CHECK(frame_in_words(nlohmann::json::object()) == "?");
  CHECK(frame_in_words({{"function", "a\x1b[1m"}, {"library", nullptr}}) == "a\\x1b[1m");
}
