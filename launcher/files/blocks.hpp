#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace dtrain {

// Hands things from one thread to another; at most `capacity` wait, so that memory is bounded. When
// one side fails, the other's next call throws the same.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  void push(T item) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return items_.size() < capacity_ || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    items_.push_back(std::move(item));
    there_.notify_one();
  }

  // Absent when the other side has closed and all is taken.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    there_.wait(lock, [this] { return !items_.empty() || closed_ || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    room_.notify_one();
    return item;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    there_.notify_all();
  }

  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    there_.notify_all();
    room_.notify_all();
  }

 private:
  std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable there_;
  std::condition_variable room_;
  std::deque<T> items_;
  bool closed_ = false;
  std::exception_ptr failure_;
};

// A thread of a pipeline: what its body throws goes to `failed`, and so does that it cannot be
// made, since those made before wait for it; joined at the end.
class Stage {
 public:
  Stage(const std::function<void()>& body, const std::function<void(std::exception_ptr)>& failed) {
    try {
      thread_ = std::thread([body, failed] {
        try {
          body();
        } catch (...) {
          failed(std::current_exception());
        }
      });
    } catch (...) {
      failed(std::current_exception());
    }
  }
  ~Stage() { join(); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

// How much of an archive goes in one block, before it is packed.
inline constexpr std::size_t kBlockSize = std::size_t{512} << 10;
// What waits between two stages of a pipeline.
inline constexpr std::size_t kBlocksWaiting = 4;

// A block begins with one byte that says how it is packed; a fresh one is not.
inline constexpr char kPlainBlock = 'r';
inline constexpr char kZstdBlock = 'z';

// Packs blocks one by one, each by itself. What a few samples of it say cannot be made smaller
// stays as it is.
class Packer {
 public:
  explicit Packer(int level);
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  // `block` begins with kPlainBlock.
  std::string pack(std::string block);

 private:
  bool worth_it(std::string_view bytes);

  void* context_;
  int level_;
};

class Unpacker {
 public:
  Unpacker();
  ~Unpacker();
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // The block with kPlainBlock in front. Throws Error(invalid) for what no Packer made and what
  // is longer than kBlockSize.
  std::string unpack(std::string block);

 private:
  void* context_;
};

}  // namespace dtrain
