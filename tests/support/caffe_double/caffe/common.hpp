// What the backend uses of Caffe's common.hpp and of glog.  Whatever ends Caffe throws Fatal here.
#pragma once

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
  explicit Message(bool fatal) : fatal_(fatal) {}
  ~Message() noexcept(false) {
    if (fatal_) throw Fatal(text_.str());
  }
  std::ostream& stream() { return text_; }

 private:
  const bool fatal_;
  std::ostringstream text_;
};

}  // namespace double_of_glog
}  // namespace caffe

#define LOG_IS_INFO false
#define LOG_IS_WARNING false
#define LOG_IS_FATAL true
#define LOG(severity) ::caffe::double_of_glog::Message(LOG_IS_##severity).stream()
#define CHECK(condition) \
  if (condition) {       \
  } else                 \
    LOG(FATAL) << "Check failed: " #condition " "
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_LT(a, b) CHECK((a) < (b))
