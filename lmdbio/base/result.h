// A value or a Status.
#pragma once

#include <boost/outcome/basic_result.hpp>
#include <boost/outcome/policy/terminate.hpp>

#include "lmdbio/base/status.h"

namespace lmdbio {

/// Usage: `if (r) use(r.value()); else return r.error();` Calling value() of an error, or error() of a
/// success, is a bug of LMDBIO and terminates the program.
template <class T>
using Result = boost::outcome_v2::basic_result<T, Status, boost::outcome_v2::policy::terminate>;

}  // namespace lmdbio
