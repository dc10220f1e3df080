#include "trainer/comm/memory.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

using namespace dtrain::train::comm;

TEST_CASE("the heap gives, takes back and joins what is free") {
  SharedHeap heap(1 << 20);
  void* const a = heap.allocate(100);
  void* const b = heap.allocate(100);
  void* const c = heap.allocate(1 << 19);
  REQUIRE(a != nullptr);
  REQUIRE(b != nullptr);
  REQUIRE(c != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(a) % 64 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(c) % 4096 == 0);
  CHECK(heap.allocate(1 << 19) == nullptr);
  CHECK(heap.used() == 128 + 128 + (1 << 19));
  heap.free(a);
  heap.free(c);
  heap.free(b);
  CHECK(heap.used() == 0);
  void* const whole = heap.allocate(1 << 20);
  CHECK(whole == a);
  heap.free(whole);
}

TEST_CASE("what lies in the heap is known by its offset") {
  SharedHeap heap(1 << 20);
  auto* const a = static_cast<char*>(heap.allocate(1000));
  CHECK(heap.contains(a + 999));
  CHECK(heap.offset_of(a + 8, 100) == 8);
  CHECK_FALSE(heap.offset_of(a, (1 << 20) + 1).has_value());
  int elsewhere = 0;
  CHECK_FALSE(heap.offset_of(&elsewhere, 4).has_value());
}

TEST_CASE("memory that is freed goes back to the kernel") {
  SharedHeap heap(64 << 20);
  const auto blocks = [&] {
    struct stat status {};
    ::fstat(heap.fd(), &status);
    return status.st_blocks;
  };
  void* const large = heap.allocate(32 << 20);
  std::memset(large, 1, 32 << 20);
  CHECK(blocks() >= (32 << 20) / 512);
  heap.free(large);
  CHECK(blocks() == 0);
}

TEST_CASE("nobody can make a peer's memory smaller") {
  const auto fd = make_memory("test", 8192);
  CHECK(::ftruncate(fd.get(), 4096) != 0);
}
