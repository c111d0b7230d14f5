#include "runtime/compiler/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "runtime/posix.h"

namespace fusewright {
namespace {

using Clock = std::chrono::steady_clock;

// The arguments of posix_spawn, released at the end of the scope.
struct SpawnPlan {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;

  SpawnPlan() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

// Ours are all close-on-exec; this shuts out what other libraries of the process left inheritable.
void close_inherited(posix_spawn_file_actions_t* actions) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(actions, 3);
#else
  (void)actions;
#endif
}

// A host that has closed its stdio would give us descriptors 0 to 2, which the child's own stdio overwrites.
bool move_above_stdio(UniqueFd& fd) {
  if (fd.get() > STDERR_FILENO) return true;
  UniqueFd moved(fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  fd = std::move(moved);
  return static_cast<bool>(fd);
}

bool make_output_pipe(UniqueFd& read_end, UniqueFd& write_end) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return false;
  read_end = UniqueFd(fds[0]);
  write_end = UniqueFd(fds[1]);
  return move_above_stdio(read_end) && move_above_stdio(write_end) && fcntl(read_end.get(), F_SETFL, O_NONBLOCK) == 0;
}

// A socket and not a pipe: sending to a program that has gone must not raise SIGPIPE in the host.
bool make_input_socket(UniqueFd& ours, UniqueFd& theirs) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return false;
  ours = UniqueFd(fds[0]);
  theirs = UniqueFd(fds[1]);
  return move_above_stdio(ours) && move_above_stdio(theirs);
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& replacements) {
  std::vector<std::string> merged;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(replacements.begin(), replacements.end(),
                                      [&](const auto& replacement) { return replacement.first == name; });
    if (!replaced) merged.push_back(text);
  }
  for (const auto& [name, value] : replacements) merged.push_back(name + "=" + value);
  return merged;
}

// A started program: collects its output and its status.
class Child {
 public:
  Child(pid_t pid, UniqueFd output, UniqueFd input, const SubprocessOptions& options)
      : pid_(pid), output_(std::move(output)), input_(std::move(input)), options_(options) {}

  SubprocessResult wait() {
    const Clock::time_point deadline = Clock::now() + options_.timeout;
    while (true) {
      // First the status, then the output: what an ended program wrote is in the pipe by then. The end of the
      // pipe alone is no sign, for a grandchild may hold it open.
      const bool ended = reap();
      drain();
      if (ended) return std::move(result_);
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      if (left.count() <= 0) return give_up();
      poll_for(std::min(left, std::chrono::milliseconds(output_ ? 100 : 1)));
    }
  }

 private:
  SubprocessResult give_up() {
    ::kill(-pid_, SIGKILL);
    result_.timed_out = true;
    // Bounded: a program stuck in the kernel cannot be reaped, and must not take us with it.
    for (int i = 0; i < 2000 && !reap(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    drain();
    return std::move(result_);
  }

  bool reap() {
    int status = 0;
    const pid_t waited = waitpid(pid_, &status, WNOHANG);
    if (waited == 0 || (waited < 0 && errno == EINTR)) return false;
    if (waited < 0) {
      result_.error = "its exit status is lost (the process ignores SIGCHLD or reaps all children)";
    } else if (WIFEXITED(status)) {
      result_.exit_code = WEXITSTATUS(status);
    } else {
      result_.signal = WTERMSIG(status);
    }
    return true;
  }

  void drain() {
    char buffer[4096];
    while (output_) {
      const ssize_t n = ::read(output_.get(), buffer, sizeof buffer);
      if (n > 0) {
        const size_t room = options_.max_output - std::min(options_.max_output, result_.output.size());
        result_.output.append(buffer, std::min(room, static_cast<size_t>(n)));
      } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        output_.reset();
      } else if (errno == EAGAIN) {
        return;
      }
    }
  }

  void poll_for(std::chrono::milliseconds time) {
    pollfd fds[2] = {{output_.get(), POLLIN, 0}, {input_.get(), POLLOUT, 0}};  // poll skips -1
    if (::poll(fds, 2, static_cast<int>(time.count())) > 0 && fds[1].revents != 0) feed();
  }

  void feed() {
    const std::string& text = options_.stdin_text;
    const ssize_t n = ::send(input_.get(), text.data() + sent_, text.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) sent_ += static_cast<size_t>(n);
    const bool failed = n < 0 && errno != EAGAIN && errno != EINTR;
    if (failed || sent_ == text.size()) input_.reset();
  }

  pid_t pid_;
  UniqueFd output_, input_;
  const SubprocessOptions& options_;
  size_t sent_ = 0;
  SubprocessResult result_;
};

bool is_executable_file(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

SubprocessResult failure(const std::string& error) {
  SubprocessResult result;
  result.error = error;
  return result;
}

}  // namespace

std::string SubprocessResult::describe() const {
  if (!error.empty()) return error;
  if (timed_out) return "timed out";
  if (signal != 0) return "signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  return "exit code " + std::to_string(exit_code);
}

std::string find_program(const std::string& name) {
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) return is_executable_file(name) ? name : "";
  const char* variable = std::getenv("PATH");
  const std::string path = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string candidate = path.substr(begin, end - begin) + "/" + name;
    if (path[begin] == '/' && is_executable_file(candidate)) return candidate;
    begin = end + 1;
  }
  return "";
}

SubprocessResult run_subprocess(const std::vector<std::string>& arguments, const SubprocessOptions& options) {
  if (arguments.empty()) return failure("no program was named");
  const std::string program = find_program(arguments[0]);
  if (program.empty()) return failure("program '" + arguments[0] + "' was not found or is not executable");

  UniqueFd output, child_output, input, child_input;
  if (!make_output_pipe(output, child_output)) return failure(std::string("pipe: ") + std::strerror(errno));
  SpawnPlan plan;
  if (options.stdin_text.empty()) {
    posix_spawn_file_actions_addopen(&plan.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  } else {
    if (!make_input_socket(input, child_input)) return failure(std::string("socketpair: ") + std::strerror(errno));
    posix_spawn_file_actions_adddup2(&plan.actions, child_input.get(), STDIN_FILENO);
  }
  posix_spawn_file_actions_adddup2(&plan.actions, child_output.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&plan.actions, child_output.get(), STDERR_FILENO);
  close_inherited(&plan.actions);

  // Python ignores SIGPIPE and threads of the host may block signals; a compiler expects the defaults.
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&plan.attributes, &all);
  posix_spawnattr_setsigmask(&plan.attributes, &none);
  posix_spawnattr_setpgroup(&plan.attributes, 0);
  posix_spawnattr_setflags(&plan.attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);

  const std::vector<std::string> environment = merged_environment(options.environment);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &plan.actions, &plan.attributes, pointers_to(arguments).data(),
                                pointers_to(environment).data());
  if (error != 0) return failure("cannot start '" + program + "': " + std::strerror(error));
  child_output.reset();
  child_input.reset();
  return Child(pid, std::move(output), std::move(input), options).wait();
}

}  // namespace fusewright
