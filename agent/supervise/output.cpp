#include "agent/supervise/output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "launcher/core/error.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;         // bytes of one splice
constexpr std::size_t kTurn = std::size_t{8} << 20;          // bytes of one stream before the next
constexpr std::size_t kWorthwhile = std::size_t{128} << 10;  // bytes that pay for a wake-up
constexpr std::chrono::milliseconds kNap{1};                 // to let more come, when it was less
constexpr std::chrono::seconds kRetry{1};                    // after a full disk

void signal_eventfd(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(fd, &one, sizeof one);
}

void clear_eventfd(int fd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof count);
}

UniqueFd make_eventfd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw errno_error("cannot make an eventfd", errno);
  return fd;
}

}  // namespace

struct Output::Shared {
  UniqueFd notify = make_eventfd();  // to the owner: there are notes
  UniqueFd wake = make_eventfd();    // to the thread: a stream is new, or stop
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> dropped{0};
  std::mutex mutex;  // guards what follows
  std::vector<Stream> incoming;
  std::vector<Note> notes;

  void note(Note note) {
    {
      const std::lock_guard lock(mutex);
      notes.push_back(std::move(note));
    }
    signal_eventfd(notify.get());
  }
};

// One pipe and its file; lives in the thread.
struct Output::Stream {
  int number = 0;
  UniqueFd pipe;
  UniqueFd file;
  bool can_splice = true;
  bool dropping = false;
  std::chrono::steady_clock::time_point retry_at;

  enum class Step : std::uint8_t { moved, nothing, ended };

  // Moves at most one piece; `moved` gets its size.
  Step step(Shared& shared, std::vector<char>& buffer, std::size_t& moved) {
    if (dropping && std::chrono::steady_clock::now() >= retry_at) dropping = false;
    const bool splicing = can_splice && !dropping;
    const ssize_t got = splicing ? ::splice(pipe.get(), nullptr, file.get(), nullptr, kPiece,
                                            SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
                                 : ::read(pipe.get(), buffer.data(), buffer.size());
    if (got == 0) return Step::ended;
    if (got < 0) {
      if (errno == EAGAIN) return Step::nothing;
      if (errno == EINTR) return Step::moved;
      if (!splicing) return Step::ended;  // a pipe that cannot be read has no more to say
      if (errno == EINVAL) {
        can_splice = false;  // this file system has no splice
      } else {
        begin_dropping(shared, errno);
      }
      return Step::moved;
    }
    moved += static_cast<std::size_t>(got);
    if (splicing) return Step::moved;
    if (dropping) {
      shared.dropped += static_cast<std::uint64_t>(got);
    } else {
      write_out(shared, buffer.data(), static_cast<std::size_t>(got));
    }
    return Step::moved;
  }

 private:
  void write_out(Shared& shared, const char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t wrote = ::write(file.get(), data, size);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        begin_dropping(shared, errno);
        shared.dropped += size;
        return;
      }
      data += wrote;
      size -= static_cast<std::size_t>(wrote);
    }
  }

  void begin_dropping(Shared& shared, int error) {
    dropping = true;
    retry_at = std::chrono::steady_clock::now() + kRetry;
    shared.note({number, Note::What::dropping, std::strerror(error)});
  }
};

void Output::run(const std::shared_ptr<Shared>& shared) {
  // Signals are the main thread's; a file size limit is an error here and no signal.
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);

  std::vector<Stream> streams;
  std::vector<pollfd> polled;
  std::vector<char> buffer(std::size_t{256} << 10);
  bool nap = false;
  while (!shared->stop) {
    {
      const std::lock_guard lock(shared->mutex);
      for (Stream& stream : shared->incoming) streams.push_back(std::move(stream));
      shared->incoming.clear();
    }
    polled.assign(1, {shared->wake.get(), POLLIN, 0});
    // Without the pipes the poll is a nap that only a command ends.
    if (!nap) {
      for (const Stream& stream : streams) polled.push_back({stream.pipe.get(), POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), nap ? static_cast<int>(kNap.count()) : -1) < 0) {
      continue;
    }
    if (polled[0].revents != 0) clear_eventfd(shared->wake.get());
    const bool all_streams = std::exchange(nap, false);

    std::size_t moved = 0;
    for (std::size_t i = 0; i < streams.size();) {
      Stream& stream = streams[i];
      const bool ready = all_streams || polled.size() <= i + 1 || polled[i + 1].revents != 0;
      auto step = Stream::Step::nothing;
      std::size_t turn = 0;
      while (ready && turn < kTurn) {
        step = stream.step(*shared, buffer, turn);
        if (step != Stream::Step::moved) break;
      }
      moved += turn;
      if (step == Stream::Step::ended) {
        const int number = stream.number;
        streams.erase(streams.begin() + static_cast<std::ptrdiff_t>(i));
        if (polled.size() > i + 1)
          polled.erase(polled.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        shared->note({number, Note::What::ended, ""});
      } else {
        ++i;
      }
    }
    nap = moved > 0 && moved < kWorthwhile;
  }
}

Output::Output() : shared_(std::make_shared<Shared>()), notify_fd_(shared_->notify.get()) {}

Output::~Output() {
  if (!thread_.joinable()) return;
  shared_->stop = true;
  signal_eventfd(shared_->wake.get());
  if (done_.wait_for(std::chrono::seconds(1)) == std::future_status::ready) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

int Output::add(UniqueFd pipe, UniqueFd file) {
  Stream stream;
  stream.number = next_stream_++;
  stream.pipe = std::move(pipe);
  stream.file = std::move(file);
  const int number = stream.number;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->incoming.push_back(std::move(stream));
  }
  signal_eventfd(shared_->wake.get());
  if (!thread_.joinable()) {
    std::packaged_task<void()> task([shared = shared_] { run(shared); });
    done_ = task.get_future();
    thread_ = std::thread(std::move(task));
  }
  return number;
}

std::vector<Output::Note> Output::take_notes() {
  clear_eventfd(notify_fd_);
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->notes, {});
}

std::uint64_t Output::dropped_bytes() const noexcept {
  return shared_->dropped;
}

OutputPipe make_output_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  OutputPipe made{UniqueFd(ends[0]), UniqueFd(ends[1])};
  ::fcntl(made.reader.get(), F_SETFL, O_NONBLOCK);
  // Users without privileges have a limit on all their pipes together.
  for (const int size : {1 << 20, 1 << 18}) {
    if (::fcntl(made.reader.get(), F_SETPIPE_SZ, size) >= 0) break;
  }
  return made;
}

}  // namespace dtrain::supervise
