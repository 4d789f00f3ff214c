// What the backend uses of Caffe's common.hpp and of glog.  Whatever ends Caffe throws Fatal here.
#pragma once

#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>

#define DISABLE_COPY_AND_ASSIGN(Class) \
 private:                              \
  Class(const Class&);                 \
  Class& operator=(const Class&)

namespace caffe {

using std::string;

class Fatal : public std::runtime_error {
 public:
  explicit Fatal(const string& message) : std::runtime_error(message) {}
};

namespace double_of_glog {

class Message {
 public:
  enum Severity { INFO, WARNING, FATAL };
  explicit Message(Severity severity) : severity_(severity) {}
  ~Message() noexcept(false) {
    if (severity_ == WARNING) std::fprintf(stderr, "warning: %s\n", text_.str().c_str());
    if (severity_ == FATAL) throw Fatal(text_.str());
  }
  std::ostream& stream() { return text_; }

 private:
  const Severity severity_;
  std::ostringstream text_;
};

}  // namespace double_of_glog
}  // namespace caffe

#define LOG(severity) ::caffe::double_of_glog::Message(::caffe::double_of_glog::Message::severity).stream()
#define CHECK(condition) \
  if (condition) {       \
  } else                 \
    LOG(FATAL) << "Check failed: " #condition " "
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_LT(a, b) CHECK((a) < (b))
