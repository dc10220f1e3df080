#include "trainer/comm/rendezvous.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "trainer/core/error.hpp"

namespace dtrain::train::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMagic = 0x64747231;  // with the layout of what is shared: "dtr1"
constexpr std::chrono::milliseconds kLook{20};
// The messages of a socket of packets, each sent and received whole.
constexpr std::size_t kLongest = 1024;
// What rank 0 hands over. Another text in its place says why there is no group.
constexpr const char* kControl = "control";
constexpr const char* kHeap = "heap";

using Token = std::array<unsigned char, 16>;

struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t rank = 0;
  Token token{};
};

std::string to_hex(const void* data, std::size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    const unsigned char byte = static_cast<const unsigned char*>(data)[i];
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// What must be equal for two processes to meet: the kernel's boot, the namespace in which sockets
// without a file are found, the user.
std::string host_identity() {
  std::string text;
  try {
    text = read_text("/proc/sys/kernel/random/boot_id", 64);
  } catch (const Error&) {
    text = "?\n";  // no /proc: then the connection itself decides
  }
  struct stat net {};
  if (::stat("/proc/self/ns/net", &net) == 0) text += std::to_string(net.st_ino);
  return text + " " + std::to_string(::geteuid());
}

std::chrono::milliseconds left_until(Clock::time_point deadline) {
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
}

bool readable(int fd, std::chrono::milliseconds timeout) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(timeout.count())) > 0;
}

struct Message {
  std::string text;
  std::vector<FileDescriptor> fds;
};

// 0, or the errno with which it was not sent.
int try_send(int socket, const std::string& text, const std::vector<int>& fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)] = {};
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* const item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(item), fds.data(), sizeof(int) * fds.size());
  }
  return ::sendmsg(socket, &header, MSG_NOSIGNAL) < 0 ? errno : 0;
}

void send_message(int socket, const std::string& text, const std::vector<int>& fds = {}) {
  if (const int error = try_send(socket, text, fds); error != 0) {
    throw errno_error("cannot send to a rank of this host", error);
  }
}

Message receive_message(int socket, Clock::time_point deadline, int from) {
  const std::string who = "rank " + std::to_string(from);
  if (!readable(socket, left_until(deadline))) {
    throw Error(who + " connected and then said nothing while memory was shared");
  }
  char text[kLongest];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
  iovec part{text, sizeof text};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (size < 0) throw errno_error("cannot receive from " + who, errno);
  Message message;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof fd);
      message.fds.emplace_back(fd);
    }
  }
  if (size == 0) throw Error(who + " ended while memory was shared");
  message.text.assign(text, static_cast<std::size_t>(size));
  return message;
}

FileDescriptor make_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw errno_error("cannot create a unix socket", errno);
  return fd;
}

// In the namespace of sockets without a file, under a name that the kernel chooses.
FileDescriptor listen_anywhere(std::string& name) {
  FileDescriptor fd = make_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof(sa_family_t);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    throw errno_error("cannot listen on a unix socket", errno);
  }
  size = sizeof address;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  name.assign(address.sun_path, size - offsetof(sockaddr_un, sun_path));
  return fd;
}

FileDescriptor connect_to(const std::string& name) {
  FileDescriptor fd = make_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() > sizeof address.sun_path) throw Error("the name of rank 0's socket is too long");
  std::memcpy(address.sun_path, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    throw errno_error("cannot reach rank 0's unix socket", errno);
  }
  return fd;
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

FileDescriptor own_pidfd() {
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
}

std::string why(const std::exception& error, int rank) {
  return "rank " + std::to_string(rank) + ": " + error.what();
}

// What rank 0 collects of each rank, and hands to all.
struct Belongings {
  FileDescriptor heap;
  FileDescriptor pidfd;  // invalid on old kernels
};

std::vector<int> numbers_of(const Belongings& belongings) {
  std::vector<int> fds{belongings.heap.get()};
  if (belongings.pidfd.valid()) fds.push_back(belongings.pidfd.get());
  return fds;
}

Belongings take(Message message, const std::string& whose) {
  if (message.fds.empty() || message.fds.size() > 2) {
    throw Error(whose + " sent no memory (is its limit of open files reached?)");
  }
  Belongings belongings;
  belongings.heap = std::move(message.fds[0]);
  if (message.fds.size() == 2) belongings.pidfd = std::move(message.fds[1]);
  return belongings;
}

Mapping map_heap(const FileDescriptor& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw errno_error("cannot look at a peer's heap", errno);
  return {fd.get(), static_cast<std::size_t>(status.st_size)};
}

class Host {
 public:
  Host(const KeyValue& store, int size, std::size_t control_size, Clock::time_point deadline)
      : store_(store), size_(size), control_size_(control_size), deadline_(deadline) {}

  Meeting run();

 private:
  std::string obstacle();
  void admit(int listener, const Token& token);
  void bring_own(Meeting& meeting, const FileDescriptor& control);
  std::string serve(std::size_t to, const FileDescriptor& control);
  std::string share(Meeting& meeting, const FileDescriptor& control);

  const KeyValue& store_;
  int size_;
  std::size_t control_size_;
  Clock::time_point deadline_;
  std::vector<FileDescriptor> sockets_;
  std::vector<Belongings> belongings_;
};

// Whether all ranks say that they are on this host and have memory to share.
std::string Host::obstacle() {
  const std::string mine = store_.get("host/0");
  for (int rank = 0; rank < size_; ++rank) {
    const std::string theirs = store_.get("host/" + std::to_string(rank));
    if (theirs.starts_with("!")) return theirs.substr(1);
    if (theirs != mine) {
      return "rank 0 and rank " + std::to_string(rank) +
             " are not on one host (or not in one network namespace, or of two users)";
    }
  }
  return {};
}

void Host::admit(int listener, const Token& token) {
  sockets_.resize(static_cast<std::size_t>(size_));
  belongings_.resize(static_cast<std::size_t>(size_));
  for (int missing = size_ - 1; missing > 0;) {
    if (!readable(listener, kLook)) {
      for (int rank = 1; rank < size_; ++rank) {
        const std::string key = "failed/" + std::to_string(rank);
        if (!sockets_[static_cast<std::size_t>(rank)].valid() && store_.has(key)) {
          throw Error(store_.get(key));
        }
      }
      if (left_until(deadline_).count() == 0) {
        throw Error("not all ranks came to share memory in time");
      }
      continue;
    }
    FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid() || !same_user(socket.get())) continue;
    Message message = receive_message(socket.get(), deadline_, -1);
    Hello hello;
    if (message.text.size() != sizeof hello) continue;
    std::memcpy(&hello, message.text.data(), sizeof hello);
    const auto index = static_cast<std::size_t>(hello.rank);
    if (hello.magic != kMagic || hello.token != token || hello.rank == 0 ||
        index >= sockets_.size() || sockets_[index].valid()) {
      continue;  // nobody of ours
    }
    belongings_[index] = take(std::move(message), "rank " + std::to_string(hello.rank));
    sockets_[index] = std::move(socket);
    --missing;
  }
}

void Host::bring_own(Meeting& meeting, const FileDescriptor& control) {
  belongings_[0].heap = FileDescriptor(::dup(SharedHeap::of_process()->fd()));
  if (!belongings_[0].heap.valid()) throw errno_error("cannot hand out its heap", errno);
  belongings_[0].pidfd = own_pidfd();
  meeting.control = Mapping(control.get(), control_size_);
  for (std::size_t rank = 1; rank < sockets_.size(); ++rank) {
    meeting.peers[rank].heap = map_heap(belongings_[rank].heap);
  }
}

// Hands everything to one rank, and returns why it was not handed over or could not be taken.
std::string Host::serve(std::size_t to, const FileDescriptor& control) {
  const int socket = sockets_[to].get();
  int error = try_send(socket, kControl, {control.get()});
  for (std::size_t of = 0; of < belongings_.size() && error == 0; ++of) {
    if (of != to) error = try_send(socket, kHeap, numbers_of(belongings_[of]));
  }
  if (error != 0) {
    const Error failed = errno_error("cannot hand memory to rank " + std::to_string(to), error);
    if (error == EPIPE || error == ECONNRESET) throw failed;  // it has ended
    return why(failed, 0);
  }
  const Message answer = receive_message(socket, deadline_, static_cast<int>(to));
  return answer.text == "ok" ? "" : answer.text;
}

// Hands everything to everybody, and returns what any of them, or rank 0 itself, could not take,
// of which all are told. One rank has taken everything before it is the next one's turn: a user
// may have no more descriptors on their way than one process may have open.
std::string Host::share(Meeting& meeting, const FileDescriptor& control) {
  std::string problem;
  meeting.peers.resize(sockets_.size());
  try {
    bring_own(meeting, control);
  } catch (const Error& error) {
    problem = why(error, 0);
  }
  for (std::size_t to = 1; to < sockets_.size() && problem.empty(); ++to) {
    problem = serve(to, control);
  }
  for (std::size_t rank = 1; rank < sockets_.size(); ++rank) {
    send_message(sockets_[rank].get(), problem.empty() ? "go" : problem.substr(0, kLongest));
    Peer& peer = meeting.peers[rank];
    peer.life = belongings_[rank].pidfd.valid() ? std::move(belongings_[rank].pidfd)
                                                : std::move(sockets_[rank]);
  }
  return problem;
}

Meeting Host::run() {
  Meeting meeting;
  FileDescriptor listener;
  FileDescriptor control;
  Token token{};
  std::string name;
  meeting.problem = obstacle();
  if (meeting.problem.empty()) {
    try {
      if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
        throw errno_error("cannot get a random number", errno);
      }
      control = make_memory("dtrain-group", control_size_);
      listener = listen_anywhere(name);
    } catch (const Error& error) {
      meeting.problem = why(error, 0);
    }
  }
  if (!meeting.problem.empty()) {
    store_.set("meet", "!" + meeting.problem);
    return meeting;
  }
  store_.set("meet", to_hex(name.data(), name.size()) + " " + to_hex(token.data(), token.size()));
  std::string refused;
  try {
    admit(listener.get(), token);
  } catch (const Error& error) {
    refused = error.what();
  }
  // Those who came may go on only when all have come.
  store_.set("all", refused.empty() ? "yes" : "!" + refused);
  if (!refused.empty()) {
    meeting.problem = refused;
    return meeting;
  }
  meeting.problem = share(meeting, control);
  return meeting;
}

Meeting visit(const KeyValue& store, int rank, int size, std::size_t control_size,
              Clock::time_point deadline) {
  Meeting meeting;
  const std::string invitation = store.get("meet");
  if (invitation.starts_with("!")) {
    meeting.problem = invitation.substr(1);
    return meeting;
  }
  FileDescriptor socket;
  try {
    const auto space = invitation.find(' ');
    socket = connect_to(from_hex(invitation.substr(0, space)));
    if (!same_user(socket.get())) throw Error("rank 0's unix socket is another user's");
    Hello hello;
    hello.rank = static_cast<std::uint32_t>(rank);
    const std::string token = from_hex(invitation.substr(space + 1));
    std::memcpy(hello.token.data(), token.data(), std::min(token.size(), hello.token.size()));
    const FileDescriptor pidfd = own_pidfd();
    std::vector<int> fds{SharedHeap::of_process()->fd()};
    if (pidfd.valid()) fds.push_back(pidfd.get());
    send_message(socket.get(), {reinterpret_cast<const char*>(&hello), sizeof hello}, fds);
  } catch (const Error& error) {
    store.set("failed/" + std::to_string(rank), why(error, rank));
  }
  const std::string all = store.get("all");
  if (all.starts_with("!")) {
    meeting.problem = all.substr(1);
    return meeting;
  }

  std::string problem = "ok";
  meeting.peers.resize(static_cast<std::size_t>(size));
  const Message control = receive_message(socket.get(), deadline, 0);
  if (control.text != kControl) {
    meeting.problem = control.text;
    return meeting;
  }
  try {
    if (control.fds.size() != 1) throw Error("rank 0 sent no memory");
    meeting.control = Mapping(control.fds[0].get(), control_size);
  } catch (const Error& error) {
    problem = why(error, rank);
  }
  for (int of = 0; of < size; ++of) {
    if (of == rank) continue;
    Message message = receive_message(socket.get(), deadline, 0);
    if (message.text != kHeap) {
      meeting.problem = message.text;
      return meeting;
    }
    Peer& peer = meeting.peers[static_cast<std::size_t>(of)];
    try {
      Belongings belongings = take(std::move(message), "rank 0");
      peer.heap = map_heap(belongings.heap);
      peer.life = std::move(belongings.pidfd);
    } catch (const Error& error) {
      problem = why(error, rank);
    }
  }
  send_message(socket.get(), problem.substr(0, kLongest));
  const Message verdict = receive_message(socket.get(), deadline, 0);
  if (verdict.text != "go") meeting.problem = verdict.text;
  if (!meeting.peers[0].life.valid()) meeting.peers[0].life = std::move(socket);
  return meeting;
}

}  // namespace

Meeting meet(const KeyValue& store, int rank, int size, std::size_t control_size,
             std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const bool have_heap = SharedHeap::of_process() != nullptr;
  store.set("host/" + std::to_string(rank),
            have_heap ? host_identity()
                      : "!rank " + std::to_string(rank) + " cannot create shared memory");
  return rank == 0 ? Host(store, size, control_size, deadline).run()
                   : visit(store, rank, size, control_size, deadline);
}

}  // namespace dtrain::train::comm
