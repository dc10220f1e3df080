#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "trainer/core/files.hpp"

// Memory that processes of one host share. It has no name: when the last process that maps it or
// holds its descriptor is gone, by SIGKILL too, so is the memory. /dev/shm's size does not matter.
namespace dtrain::train::comm {

// A mapping, ended by the destructor.
class Mapping {
 public:
  Mapping() = default;
  // Throws Error if the kernel refuses (RLIMIT_AS, a sandbox).
  Mapping(int fd, std::size_t size);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A memfd of this size, sealed against changes of it. Pages cost nothing until they are touched.
FileDescriptor make_memory(const char* label, std::size_t size);

// This process's heap of memory that its peers can map: what is allocated here can be reduced where
// it is. Grows by touching; freed pages go back to the kernel. Any thread.
class SharedHeap {
 public:
  explicit SharedHeap(std::size_t size);

  // The process's one heap, made at the first call and never destroyed: tensors in it may outlive
  // everything else. Null if this machine does not allow it.
  static SharedHeap* of_process();
  // The same, but null as long as nobody has called of_process().
  static SharedHeap* if_made();

  // Zeroed or used memory, at 64 bytes' alignment. Null when the heap is full.
  void* allocate(std::size_t bytes);
  void free(void* pointer);

  bool contains(const void* pointer) const;
  // Where the bytes lie in the heap; nullopt unless all of them do.
  std::optional<std::uint64_t> offset_of(const void* pointer, std::size_t bytes) const;

  int fd() const { return fd_.get(); }
  std::size_t size() const { return mapping_.size(); }
  std::size_t used() const;  // bytes

 private:
  FileDescriptor fd_;
  Mapping mapping_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;       // offset -> size, neighbours joined
  std::map<std::size_t, std::size_t> allocated_;  // offset -> size
  std::size_t used_ = 0;
};

}  // namespace dtrain::train::comm
