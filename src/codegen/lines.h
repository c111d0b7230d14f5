#pragma once
#include <string>

namespace fusewright {

// The lines of a file that is being written.
class Lines {
 public:
  template <class... Parts>
  void line(const Parts&... parts) {
    out_.append(static_cast<size_t>(indent_) * 2, ' ');
    (out_.append(parts), ...);
    out_ += '\n';
  }
  template <class... Parts>
  void open(const Parts&... parts) {
    line(parts..., " {");
    ++indent_;
  }
  void close(const char* after = "") {
    --indent_;
    line("}", after);
  }

 protected:
  std::string out_;
  int indent_ = 0;
};

}  // namespace fusewright
